"""Two references: reject updates that oppose both the running mean of all updates and the global model.

This rule was made for this project. docs/factions-history.md says what it was measured on, how it fails, and
what else was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import (
    Cohort,
    Judgment,
    Similarities,
    SimilarityFilter,
    State,
    Teaching,
    check_decay,
    running_average,
)
from ..ops import cosines, cosines_with, median_of, row_norms, weighted_sum
from .agreement import cosine_with_members, find_majority, relative_to_typical, soften
from .near_duplicates import count_duplicates, typical_cosine

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
class Seen:
    """What the rule knows of a round, in float64.

    Args:
        norms: Of the updates.
        similarity: The cosine of every two updates.
        with_mean: The cosine of every update with the running mean. None: there is none yet.
        with_model: The same with the global model. None: all of them are zero, as those with a model of zeros are.
    """

    norms: Float[Tensor, " n"]
    similarity: Float[Tensor, "n n"]
    with_mean: Float[Tensor, " n"] | None
    with_model: Float[Tensor, " n"] | None


@dataclass(frozen=True)
class Decision:
    """What the rule decides.

    Args:
        agreement: How much each update agrees with what it is judged by.
        weights: How much it counts.
        shares: What the updates are multiplied by in the mean of this round. None: the running mean stays as it is.
        kept: How much of the running mean is kept; the mean of this round gets the rest.
        n_rounds: How many rounds the running mean has learned.
        baseline: The running average of the typical cosine.
    """

    agreement: Float[Tensor, " n"]
    weights: Float[Tensor, " n"]
    shares: Float[Tensor, " n"] | None
    kept: float
    n_rounds: int
    baseline: float | None


@dataclass(frozen=True)
class TwoReferences(SimilarityFilter):
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

    keeps_mean: ClassVar[bool] = True

    tolerance: float = 0.3
    decay: float = 0.95

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"TwoReferences.tolerance must be positive, got {self.tolerance}")
        check_decay(self)

    def init(self) -> State:
        return ReferenceMemory()

    def list_references(self, params: Float[Tensor, " d"], state: State) -> tuple[Float[Tensor, " d"], ...]:
        return (params,)

    def __call__(
        self, cohort: Cohort, state: State, similarities: Similarities | None = None
    ) -> tuple[Judgment, State]:
        memory: ReferenceMemory = state
        rows = cohort.trainable()
        similarity = cosines(rows) if similarities is None else similarities.cosines()
        seen = Seen(row_norms(rows).double(), similarity, *_compare(cohort, memory.mean))
        judgment, after = self._conclude(seen, cohort.weights, memory)
        mean, teaching = memory.mean, judgment.teaching
        if teaching is not None:
            new = weighted_sum(rows, teaching.shares, torch.float32)
            mean = new if mean is None else torch.lerp(new, mean, teaching.kept)
        return judgment, replace(after, mean=mean)

    def judge(self, similarities: Similarities, weights: Tensor, state: State) -> tuple[Judgment, State]:
        """As `__call__`, without the updates and the running mean: `ReferenceMemory.mean` stays None."""
        norms, with_model = similarities.norms().double(), similarities.cosines_with(similarities.params).double()
        seen = Seen(norms, similarities.cosines(), similarities.cosines_with_mean(), _unless_zero(with_model))
        return self._conclude(seen, weights, state)

    def _conclude(self, seen: Seen, weights: Tensor, memory: ReferenceMemory) -> tuple[Judgment, ReferenceMemory]:
        n_rounds = 0 if seen.with_mean is None else memory.n_rounds  # a mean that was lost starts again
        decision = self.decide(seen, n_rounds, memory.baseline)
        teaching = None if decision.shares is None else Teaching(decision.shares, decision.kept)
        judgment = Judgment((-decision.agreement).to(weights), decision.weights.to(weights), teaching=teaching)
        return judgment, ReferenceMemory(None, decision.n_rounds, decision.baseline)

    def decide(self, seen: Seen, n_rounds: int, baseline: float | None) -> Decision:
        """The rule. It knows norms, cosines and two remembered numbers, and no update."""
        votes, typical = self._share_votes(seen.similarity, baseline)
        agreement, weights = self._judge(seen, votes)
        if typical is not None:
            baseline = running_average(baseline, typical, BASELINE_DECAY)
        shares = _teach(seen.norms, votes)
        kept = min(self.decay, 1 - 1 / (START * n_rounds + 1))
        return Decision(agreement, weights, shares, kept, n_rounds + (shares is not None), baseline)

    def _share_votes(
        self, similarity: Float[Tensor, "n n"], baseline: float | None
    ) -> tuple[Float[Tensor, " n"], float | None]:
        """The vote of each update, and the typical cosine of this round."""
        typical = typical_cosine(similarity)
        baseline = baseline if baseline is not None else typical
        if baseline is None:  # a single update
            return torch.ones_like(similarity[0]), typical
        return 1 / (1 + count_duplicates(similarity, baseline)), typical

    def _judge(self, seen: Seen, votes: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """How much each update agrees with what it is judged by, and its weight."""
        majority = find_majority(seen.similarity)
        if bool(majority.any()):
            agreement = relative_to_typical(cosine_with_members(seen.similarity, majority))
            weights = torch.where(majority, 1, votes) * soften(agreement, 1.0)
        else:
            agreement = _agree_with_either(seen)
            weights = votes * soften(agreement, self.tolerance)
        return agreement, weights if bool((weights > 0).any()) else votes


def _compare(cohort: Cohort, mean: Float[Tensor, " t"] | None) -> tuple[Tensor | None, Tensor | None]:
    """The cosines of every update with the running mean and with the model, of those that there are."""
    model = cohort.params[: cohort.layout.n_trainable]
    known = [vector for vector in (mean, model) if vector is not None]
    found = cosines_with(cohort.trainable(), torch.stack([vector.to(known[0]) for vector in known]))
    return None if mean is None else found[:, 0], _unless_zero(found[:, -1])


def _unless_zero(with_model: Float[Tensor, " n"]) -> Float[Tensor, " n"] | None:
    """None where the model says nothing about any update, as a model of zeros does."""
    return with_model if bool(with_model.any()) else None


def _teach(norms: Float[Tensor, " n"], votes: Float[Tensor, " n"]) -> Float[Tensor, " n"] | None:
    """What each update is multiplied by in the mean of this round, which the running mean learns."""
    if not bool((norms > 0).any()):  # nobody sent anything
        return None
    typical = median_of(norms[norms > 0])
    lengths = norms.clamp_max(typical) * (TAPER * typical / norms.clamp_min(typical)).clamp_max(1).square()
    return torch.where(norms > 0, votes * lengths / typical / norms, 0) / votes.sum()


def _agree_with_either(seen: Seen) -> Float[Tensor, " n"]:
    """How much each update agrees with the reference that it agrees with more."""
    if seen.with_mean is None:  # in the first round the model alone says nothing yet
        return torch.zeros_like(seen.norms)
    recent = relative_to_typical(seen.with_mean)
    return recent if seen.with_model is None else torch.maximum(recent, relative_to_typical(seen.with_model))
