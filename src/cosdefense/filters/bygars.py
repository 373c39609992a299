"""ByGARS and ByGARS++: reputations earned on the server's data; who lies consistently is used the other way round.

Regatti, Chen, Gupta. ByGARS: Byzantine SGD with Arbitrary Number of Attackers. 2020.
https://arxiv.org/abs/2006.13421

Two things could not be confirmed from the paper's text and are taken from public re-implementations or
chosen here: `steps` and `rate`, and that ByGARS starts every round from zero reputations. In the paper
the reputations alone decide how far the model moves, which then depends on `steps`, `rate` and the
number of clients; here every row is given the length of the server's own update, and the mean divides
by Σ|q|, so that they decide the direction only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import ClientTable, Cohort, Filter, Judgment, Need, State, derive
from ..ops import rescaled
from .fltrust import agreement, as_long_as, server_update


@dataclass(frozen=True)
class ByGARS(Filter):
    """q ← q + rate · cos(u, u₀(w + ‖u₀‖ Σ q û)), repeated; weight |q|, row sign(q) · û · ‖u₀‖."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA})

    steps: int = 3  # how often the server looks where the reputations so far would lead
    rate: float = 0.05  # how much of each look goes into a reputation

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"ByGARS.steps must be at least 1, got {self.steps}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"ByGARS.rate must be in (0, 1], got {self.rate}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        own = server_update(cohort, cohort.params, cohort.seed)
        rows = as_long_as(own, cohort)
        reputations = torch.zeros_like(cohort.weights)
        for step in range(self.steps):
            if step > 0:
                ahead = cohort.params + reputations @ rows
                own = server_update(cohort, ahead, derive(cohort.seed, "bygars", step))
            reputations = reputations + self.rate * agreement(cohort, own)
        return reputed(reputations, rows, cohort), state


@dataclass(frozen=True)
class ByGARSPlusPlus(Filter):
    """q ← (1 − rate) q + rate · cos(u, u₀), remembered per client; weight |q|, row sign(q) · û · ‖u₀‖."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA, Need.CLIENT_MEMORY})

    rate: float = 0.1  # how much of a round goes into a reputation
    capacity: int = 10_000  # how many clients are remembered

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
        reputations = (1 - self.rate) * before + self.rate * agreement(cohort, own)
        table = state.updated(cohort.clients, reputations[:, None], self.capacity)
        return reputed(reputations, as_long_as(own, cohort), cohort), table


def reputed(reputations: Float[Tensor, " n"], rows: Float[Tensor, "n d"], cohort: Cohort) -> Judgment:
    """Those with a negative reputation count as well, their weights turned round. Statistics know no way back."""
    n_trainable = cohort.layout.n_trainable
    turned = torch.cat([rescaled(rows[:, :n_trainable], reputations.sign()), rows[:, n_trainable:]], dim=1)
    return Judgment(-reputations, reputations.abs(), turned)
