"""RFFL: a reputation for every client, based on agreement with the aggregate; the lowest are removed permanently.

Xu, Lyu. A Reputation Mechanism Is All You Need: Collaborative Fairness and Adversarial Robustness in
Federated Learning. 2020. https://arxiv.org/abs/2011.10464

In the paper clients also download only as much of the model as their reputation allows. That is out of scope: here
every client receives the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import ClientTable, Cohort, Filter, Judgment, Need, State, check_decay
from ..ops import compute_dtype, cosine, weighted_sum

Start = Literal["agreement", "average"]


@dataclass(frozen=True)
class RFFL(Filter):
    """Weight every update by its client's reputation, and remove clients whose reputation is below threshold / n.

    r ← decay · r + (1 − decay) · cos(u, Σ r u), normalized over the round. A new client counts with the average share
    in its first round. The authors start reputations at zero, so that the agreement in the first round decides them.
    They expect every client in every round. Here a round redistributes the sum of its participants' reputations, and
    a client that joins later gets what it would have got if the round had been the first for everybody; a zero would
    remove it at once. The warm-up counts per client, and no reputation is negative. With full participation this is
    the authors' rule.

    Args:
        decay: How much of a reputation is kept from round to round.
        threshold: A client is removed below this share of the average reputation.
        warm_up: The number of rounds in which a client cannot be removed.
        capacity: How many clients are remembered. A removed client that is forgotten may return.
        start: What a new client's reputation starts from: "agreement", that of its first round, as in the authors'
            code; or "average", the average share, which one round changes little.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLIENT_MEMORY})

    decay: float = 0.95
    threshold: float = 1 / 3
    warm_up: int = 10
    capacity: int = 10_000
    start: Start = "agreement"

    def __post_init__(self) -> None:
        check_decay(self)
        if not 0 <= self.threshold < 1:
            raise ValueError(f"RFFL.threshold must be in [0, 1), got {self.threshold}")
        if self.warm_up < 0:
            raise ValueError(f"RFFL.warm_up must be at least 0, got {self.warm_up}")
        if self.capacity < 1:
            raise ValueError(f"RFFL.capacity must be at least 1, got {self.capacity}")
        if self.start not in get_args(Start):
            raise ValueError(f"RFFL.start must be one of {get_args(Start)}, got {self.start!r}")

    def init(self) -> ClientTable:
        return ClientTable.empty()  # columns: reputation in average shares, rounds seen, whether removed

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        newcomer = cohort.weights.new_tensor([1.0, 0.0, 0.0]).expand(len(cohort), 3)
        reputation, seen, removed = state.lookup(cohort.clients, default=newcomer).unbind(dim=1)
        remaining = removed == 0
        weights = reputation * remaining
        after = self._update_reputations(weights, remaining, seen == 0, cohort)
        average = after.sum() / remaining.sum().clamp_min(1)
        low = (after < self.threshold * average) & (seen >= self.warm_up)
        rows = torch.stack([after, seen + 1, (low | ~remaining).to(seen.dtype)], dim=1)
        return Judgment(-weights, weights), state.with_rows(cohort.clients, rows, self.capacity)

    def _update_reputations(
        self, weights: Float[Tensor, " n"], remaining: Bool[Tensor, " n"], new: Bool[Tensor, " n"], cohort: Cohort
    ) -> Float[Tensor, " n"]:
        """Reputations after the round. Their sum stays the same."""
        total_before = weights.sum()
        shares = weights / torch.where(total_before > 0, total_before, 1)
        updates = cohort.trainable()
        agreement = cosine(updates, weighted_sum(updates, shares, compute_dtype(updates.dtype)))
        if self.start == "agreement":
            first = agreement.clamp_min(0) * remaining
            total = first.sum()
            shares = torch.where(new & (total > 0), first / torch.where(total > 0, total, 1), shares)
        # A negative reputation would reverse the client's updates, which this rule does not do.
        earned = (self.decay * shares + (1 - self.decay) * agreement).clamp_min(0) * remaining
        total = earned.sum()
        return torch.where(total > 0, earned / torch.where(total > 0, total, 1) * total_before, weights)
