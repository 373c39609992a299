"""AdapSim: the largest perturbation whose score is no worse than the worst score of an honest update.

The adaptive cosine attack of FedRoLA, as its released code defines it, with a choice of scores. Two things differ:
there every malicious client adds its own update outside of the perturbed coordinates, so that the updates are not
equal (`zero-sum-masks` does that for any attack), and a random 5 % of the feedback is reversed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ..filters.alignins import FRACTION, principal_sign_shares
from ..ops import cosine, cosines
from ._knowledge import check_choice, known_rows
from .attack import Attack

Score = Literal["pairwise-cosine", "head-cosine", "model-cosine", "alignins"]
LARGEST, TRIALS = 16.0, 30  # the search starts at 16 times the largest |mean| and halves
SHARES, SHARE_STEP = (0.01, 0.99), 0.1


@dataclass(frozen=True)
class AdapSimState:
    """The share of the coordinates to perturb, and what is needed to judge the last round."""

    share: float
    params: Float[Tensor, " t"]  # the global model of the last round with the attack; empty before the first
    perturbation: Float[Tensor, " t"]  # what was sent then, 0 outside of the perturbed coordinates


@dataclass(frozen=True)
class AdapSim(Attack):
    """All malicious clients send μ − γ · sign(μ) in the coordinates with the largest |μ| of every tensor, μ elsewhere.

    μ is the mean of the honest updates. γ starts at 16 times the largest |μ| and is halved until the score of the
    update is no worse than the worst score of an honest one. Where no γ is small enough, they send μ. If the next step
    of the global model points along what was sent in the perturbed coordinates, their share grows by 0.1, otherwise it
    shrinks by 0.1.

    Args:
        score: What must look honest. "pairwise-cosine": the smallest cosine with an honest update. "head-cosine":
            |cosine| of the classifier's weights with those of the global model, which CosDefense looks at.
            "model-cosine": the cosine of all weights with the global model. "alignins": that cosine, and the share of
            the largest coordinates whose sign is the honest majority's, both of which AlignIns looks at.
        share: The first share of the coordinates, from 0.01 to 0.99.
    """

    needs_local_training: ClassVar[bool] = False
    score: Score = "pairwise-cosine"
    share: float = 0.99

    def __post_init__(self) -> None:
        check_choice("score", self.score, Score)
        if not SHARES[0] <= self.share <= SHARES[1]:
            raise ValueError(f"AdapSim.share must be from {SHARES[0]} to {SHARES[1]}, got {self.share}")

    def init(self) -> AdapSimState:
        empty = torch.empty(0, dtype=torch.float64)
        return AdapSimState(self.share, empty, empty)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        t = cohort.layout.n_trainable
        params, known = cohort.params[:t].double(), cohort.only(known_rows(malicious, "full"))
        rows = known.updates[known.clients.argsort()].double()
        share = _adapt_share(state, params)
        row = rows.mean(dim=0)
        direction = _select_largest(row[:t], share, cohort)
        row[:t] = self._find_largest(rows[:, :t], row[:t], direction, cohort)
        state = AdapSimState(share, params, row[:t] * (direction != 0))
        return row.to(cohort.updates.dtype).expand_as(cohort.updates), state

    def _find_largest(
        self, known: Float[Tensor, "k t"], mean: Float[Tensor, " t"], direction: Float[Tensor, " t"], cohort: Cohort
    ) -> Float[Tensor, " t"]:
        """The update with the largest γ that looks honest; the mean itself if there is none."""
        gamma = LARGEST * float(mean.abs().max())
        low, high = self._honest_range(known, cohort)
        for _ in range(TRIALS):
            candidate = mean - gamma * direction
            found = self._measure(candidate, known, cohort)
            if bool(((low <= found) & (found <= high)).all()):
                return candidate
            gamma /= 2
        return mean

    def _honest_range(
        self, known: Float[Tensor, "k t"], cohort: Cohort
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """The least and the largest values that do not stand out."""
        if self.score == "pairwise-cosine":
            return cosines(known).min()[None], known.new_ones(1)
        values = torch.stack([self._measure(row, known, cohort) for row in known])
        if self.score == "head-cosine":  # without its sign
            return -values.abs().amax(dim=0), values.abs().amax(dim=0)
        return values.amin(dim=0), values.amax(dim=0)

    def _measure(self, row: Float[Tensor, " t"], known: Float[Tensor, "k t"], cohort: Cohort) -> Float[Tensor, " m"]:
        """The score, or the scores, of an update."""
        if self.score == "pairwise-cosine":
            return cosine(known, row).min()[None]
        name = cohort.layout.require_head() if self.score == "head-cosine" else None
        where = cohort.layout.slices[name] if name else slice(0, cohort.layout.n_trainable)
        found = cosine(row[None, where], cohort.params[where].double())
        if self.score != "alignins":
            return found
        return torch.cat([found, principal_sign_shares(row[None], FRACTION, known)])


def _adapt_share(state: AdapSimState, params: Float[Tensor, " t"]) -> float:
    """A larger share if the last attack moved the global model its way, a smaller one otherwise."""
    if not state.params.numel():
        return state.share
    succeeded = float((params - state.params) @ state.perturbation) > 0
    return min(SHARES[1], max(SHARES[0], state.share + (SHARE_STEP if succeeded else -SHARE_STEP)))


def _select_largest(mean: Float[Tensor, " t"], share: float, cohort: Cohort) -> Float[Tensor, " t"]:
    """sign(μ) in the given share of every tensor, where |μ| is largest, and all that tie with the last; 0 elsewhere."""
    direction = mean.sign()
    for name in cohort.layout.trainable:
        values = mean[cohort.layout.slices[name]].abs()
        count = max(1, round(share * len(values)))
        limit = values.sort(descending=True).values[count - 1]
        direction[cohort.layout.slices[name]] *= values >= limit
    return direction
