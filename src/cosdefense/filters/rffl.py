"""RFFL: a reputation for every client, earned by agreeing with the aggregate; the lowest are removed for good.

Xu, Lyu. A Reputation Mechanism Is All You Need: Collaborative Fairness and Adversarial Robustness in
Federated Learning. 2020. https://arxiv.org/abs/2011.10464

The paper's other half, letting clients download only as much of the model as their reputation earns, is
out of scope: here everybody receives the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import ClientTable, Cohort, Filter, Judgment, Need, State, check_decay
from ..ops import cosine


@dataclass(frozen=True)
class RFFL(Filter):
    """r ← decay · r + (1 − decay) · cos(u, Σ r u), shared out over the round; removed below threshold / n.

    The authors expect every client in every round. Here a round shares out what its participants held
    before, newcomers bring the fair share (the authors' zero would remove every latecomer at once), the
    warm-up is each client's own, and no reputation goes below zero. With everybody present the rest is
    the authors' rule.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLIENT_MEMORY})

    decay: float = 0.95  # how much of a reputation stays from round to round
    threshold: float = 1 / 3  # of the fair share
    warm_up: int = 10  # rounds in which a client cannot be removed yet
    capacity: int = 10_000  # how many clients are remembered; a removed one that is forgotten may return

    def __post_init__(self) -> None:
        check_decay(self)
        if not 0 <= self.threshold < 1:
            raise ValueError(f"RFFL.threshold must be in [0, 1), got {self.threshold}")
        if self.warm_up < 0:
            raise ValueError(f"RFFL.warm_up must be at least 0, got {self.warm_up}")
        if self.capacity < 1:
            raise ValueError(f"RFFL.capacity must be at least 1, got {self.capacity}")

    def init(self) -> ClientTable:
        return ClientTable.empty()  # columns: reputation in fair shares, rounds seen, whether removed

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        newcomer = cohort.weights.new_tensor([1.0, 0.0, 0.0]).expand(len(cohort), 3)
        reputation, seen, removed = state.lookup(cohort.clients, default=newcomer).unbind(dim=1)
        reputable = removed == 0
        weights = reputation * reputable
        after = self._earned(weights, reputable, cohort)
        fair = after.sum() / reputable.sum().clamp_min(1)
        low = (after < self.threshold * fair) & (seen >= self.warm_up)
        rows = torch.stack([after, seen + 1, (low | ~reputable).to(seen.dtype)], dim=1)
        return Judgment(-weights, weights), state.updated(cohort.clients, rows, self.capacity)

    def _earned(
        self, weights: Float[Tensor, " n"], reputable: Bool[Tensor, " n"], cohort: Cohort
    ) -> Float[Tensor, " n"]:
        """Reputations after the round; in sum the same as before."""
        held = weights.sum()
        shares = weights / torch.where(held > 0, held, 1)
        agreement = cosine(cohort.trainable(), shares @ cohort.trainable())
        # Less than nothing would be a vote against the client, which this rule does not know.
        earned = (self.decay * shares + (1 - self.decay) * agreement).clamp_min(0) * reputable
        total = earned.sum()
        return torch.where(total > 0, earned / torch.where(total > 0, total, 1) * held, weights)
