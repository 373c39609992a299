"""Two references: reject updates that oppose both the running mean of all updates and the global model.

This rule was made for this project. docs/factions.md explains why it works, what it was measured on, and what else was
tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State, check_decay, running_average
from ..ops import cosines, cosines_with, median_of, row_norms, weighted_sum
from .near_duplicates import count_duplicates, typical_cosine

AGREE = 0.6  # cos 53°: whoever has it with one of several updates with mutual cosines of 0.8 opposes none of them
TAPER = 3.0  # beyond this many median norms, the longer an update is, the less it says about the direction
BASELINE_DECAY = 0.95  # of the typical cosine, as in NearDuplicates
START = 0.3  # after t rounds the running mean reaches back over START · t of them, until `decay` limits that


@dataclass(frozen=True)
class ReferenceMemory:
    """What `TwoReferences` remembers: one vector of the model's size and two numbers."""

    mean: Float[Tensor, " t"] | None = None
    n_rounds: int = 0
    baseline: float | None = None  # the running average of a high quantile of the cosines, see NearDuplicates


@dataclass(frozen=True)
class TwoReferences(Filter):
    """Reject what opposes both the running mean update and the global model, unless a majority of the round agrees.

    In a round of clients with different data, the mean of the honest updates is mostly chance: half of them oppose it.
    Nearly all of them agree with the mean of many rounds, and with the model itself, which is the sum of all rounds.
    The two err at different times, so that an update is rejected only if both references contradict it: with z the
    larger of its two cosines, each divided by the median of the positive ones, the weight is 1 + z / tolerance, from 0
    to 1. Where every update opposes both, none is rejected.

    Near-duplicates share one vote, as in `NearDuplicates`. The running mean is one of all updates, rejected ones
    included, so that a wrong one is not kept by its own verdicts. In it an update counts with its norm up to the
    round's median, near-duplicates count once, and updates beyond three medians taper off.

    Memory has no say where more than half of a round agrees (mutual cosines of at least 0.6): updates are then judged
    by the direction of that majority, which has all its votes. The score is −z.

    Args:
        tolerance: How far an update may oppose the references, in typical cosines of the others, until it is rejected.
        decay: How much of the running mean is kept from round to round. It is less in the first rounds.
    """

    tolerance: float = 0.3
    decay: float = 0.98

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"TwoReferences.tolerance must be positive, got {self.tolerance}")
        check_decay(self)

    def init(self) -> State:
        return ReferenceMemory()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        memory: ReferenceMemory = state
        rows = cohort.trainable()
        norms, similarity = row_norms(rows).double(), cosines(rows)
        now = typical_cosine(similarity)
        baseline = memory.baseline if memory.baseline is not None else now
        votes = torch.ones_like(similarity[0])
        if baseline is not None:
            votes = 1 / (1 + count_duplicates(similarity, baseline))
        majority = _find_majority(similarity)
        if bool(majority.any()):
            agreement = _relative(_cosine_with_members(similarity, majority))
            weights = torch.where(majority, 1, votes) * _soften(agreement, 1.0)
        else:
            agreement = _compare(cohort, memory.mean)
            weights = votes * _soften(agreement, self.tolerance)
        if not bool((weights > 0).any()):
            weights = votes
        judgment = Judgment((-agreement).to(cohort.weights), weights.to(cohort.weights))
        return judgment, self._remember(memory, rows, norms, votes, now)

    def _remember(
        self,
        memory: ReferenceMemory,
        rows: Float[Tensor, "n t"],
        norms: Float[Tensor, " n"],
        votes: Float[Tensor, " n"],
        now: float | None,
    ) -> ReferenceMemory:
        baseline = memory.baseline if now is None else running_average(memory.baseline, now, BASELINE_DECAY)
        typical = median_of(norms[norms > 0]) if bool((norms > 0).any()) else None
        if typical is None:  # nobody sent anything
            return replace(memory, baseline=baseline)
        lengths = norms.clamp_max(typical) * (TAPER * typical / norms.clamp_min(typical)).clamp_max(1).square()
        shares = torch.where(norms > 0, votes * lengths / typical / norms, 0) / votes.sum()
        mean = weighted_sum(rows, shares, torch.float32)
        kept = min(self.decay, 1 - 1 / (START * memory.n_rounds + 1))
        if memory.mean is not None:
            mean = torch.lerp(mean, memory.mean, kept)
        return ReferenceMemory(mean, memory.n_rounds + 1, baseline)


def _compare(cohort: Cohort, mean: Float[Tensor, " t"] | None) -> Float[Tensor, " n"]:
    """How much each update agrees with the reference that it agrees with more."""
    if mean is None:  # in the first round the model alone says nothing yet
        return torch.zeros(len(cohort), dtype=torch.float64, device=cohort.updates.device)
    references = [mean, cohort.params[: cohort.layout.n_trainable].to(mean)]
    compared = cosines_with(cohort.trainable(), torch.stack(references))
    recent, whole = _relative(compared[:, 0]), _relative(compared[:, 1])
    return torch.maximum(recent, whole) if bool(references[1].any()) else recent


def _find_majority(similarity: Float[Tensor, "n n"]) -> Bool[Tensor, " n"]:
    """Updates that agree with more than half of the round, themselves included."""
    agreeing: Tensor = (similarity >= AGREE).fill_diagonal_(True).sum(dim=1)
    return (2 * agreeing > len(similarity)) & (similarity.diagonal() > 0)


def _cosine_with_members(similarity: Float[Tensor, "n n"], members: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The cosine of every update with the sum of the members' directions."""
    return similarity[:, members].sum(dim=1) / similarity[members][:, members].sum().sqrt()


def _relative(cosines_: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The cosines in units of a typical positive one."""
    positive = cosines_[cosines_ > 0]
    typical = median_of(positive) if len(positive) > 0 else median_of(cosines_.abs())
    return cosines_ / typical if bool(typical > 0) else cosines_


def _soften(agreement: Float[Tensor, " n"], tolerance: float) -> Float[Tensor, " n"]:
    """1 for what agrees, 0 for what opposes by `tolerance` or more."""
    return (1 + agreement / tolerance).clamp(0, 1)
