"""ByGARS and ByGARS++: weight updates by signed reputations that are measured on the server's data.

Regatti, Chen, Gupta. ByGARS: Byzantine SGD with Arbitrary Number of Attackers. 2020.
https://arxiv.org/abs/2006.13421

Two things could not be confirmed from the paper's text: the values of `steps` and `rate`, and that ByGARS starts
every round from zero reputations. They are taken from public re-implementations or chosen here. In the paper the
reputations alone decide how far the model moves, which then depends on `steps`, `rate` and the number of clients.
Here every row is rescaled to the norm of the server's own update, and the mean divides by Σ|q|, so that reputations
decide the direction only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import ClientTable, Cohort, Filter, Judgment, Need, State, derive
from ..ops import rescale_rows, weighted_sum
from .fltrust import cosine_with_server, rescale_to_server, server_update


@dataclass(frozen=True)
class ByGARS(Filter):
    """Weight every update by a reputation computed in this round: its agreement with the server's own update.

    q ← q + rate · cos(u, u₀(w + ‖u₀‖ Σ q û)), repeated; the weight is |q|, the row sign(q) · û · ‖u₀‖. An update with
    a negative reputation is reversed.

    Args:
        steps: How often the server trains at the point where the reputations so far would move the model.
        rate: How much each of these steps adds to a reputation.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA})
    replaces_buffers: ClassVar[bool] = True

    steps: int = 3
    rate: float = 0.05

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"ByGARS.steps must be at least 1, got {self.steps}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"ByGARS.rate must be in (0, 1], got {self.rate}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        own = server_update(cohort, cohort.params, cohort.seed)
        rows = rescale_to_server(own, cohort)
        reputations = torch.zeros_like(cohort.weights)
        for step in range(self.steps):
            if step > 0:
                ahead = cohort.params + weighted_sum(rows, reputations)
                own = server_update(cohort, ahead, derive(cohort.seed, "bygars", step))
            reputations = reputations + self.rate * cosine_with_server(cohort, own)
        return judge_by_reputation(reputations, rows, cohort), state


@dataclass(frozen=True)
class ByGARSPlusPlus(Filter):
    """Weight every update by its client's reputation: a running average of the agreement with the server's update.

    q ← (1 − rate) q + rate · cos(u, u₀), stored per client; the weight is |q|, the row sign(q) · û · ‖u₀‖. An update
    with a negative reputation is reversed.

    Args:
        rate: How much one round changes a reputation.
        capacity: How many clients are remembered.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA, Need.CLIENT_MEMORY})
    replaces_buffers: ClassVar[bool] = True

    rate: float = 0.1
    capacity: int = 10_000

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"ByGARSPlusPlus.rate must be in (0, 1], got {self.rate}")
        if self.capacity < 1:
            raise ValueError(f"ByGARSPlusPlus.capacity must be at least 1, got {self.capacity}")

    def init(self) -> ClientTable:
        return ClientTable.empty()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        own = server_update(cohort, cohort.params, cohort.seed)
        before = state.lookup(cohort.clients, default=cohort.weights.new_zeros(len(cohort), 1))[:, 0]
        reputations = (1 - self.rate) * before + self.rate * cosine_with_server(cohort, own)
        table = state.with_rows(cohort.clients, reputations[:, None], self.capacity)
        return judge_by_reputation(reputations, rescale_to_server(own, cohort), cohort), table


def judge_by_reputation(reputations: Float[Tensor, " n"], rows: Float[Tensor, "n d"], cohort: Cohort) -> Judgment:
    """Reverses the trainable part of rows with a negative reputation. A reversed BatchNorm statistic has no meaning."""
    n_trainable = cohort.layout.n_trainable
    signed = torch.cat([rescale_rows(rows[:, :n_trainable], reputations.sign()), rows[:, n_trainable:]], dim=1)
    return Judgment(-reputations, reputations.abs(), signed)
