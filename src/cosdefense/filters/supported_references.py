"""Supported references: reject updates that oppose a direction with which most recent updates agree.

This rule was made for this project. docs/factions.md explains why it works and what it was measured on,
docs/factions-history.md what else was tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State, derive
from ..ops import cosines, cosines_with, median_of, unit_sketches, upload
from .agreement import cosine_with_members, find_majority, relative_to_typical, soften
from .near_duplicates import excess_cosines, typical_cosine
from .recent_updates import (
    SKETCH_SIZE,
    Arrivals,
    Comparison,
    Recent,
    ReferenceMemory,
    compare,
    recall,
    remember,
    sketch_model,
)

UNDECIDED = 10  # votes, half for a reference and half against it, that few remembered updates must outweigh
REPEATS = 5  # of finding the common direction: it hardly changes afterwards
ROUNDING = 1e-6  # smaller differences between the agreements of a round mean nothing
CLEAR = 0.3  # of a typical agreement: the common direction is chosen to agree with many, so some agree by chance
STRICT, WIDE = 0.5, 5.0  # tolerance, in typical agreements, of a reference that most support, and of one that few do
MODERATE = 1.5  # the most that the model and its movement tolerate where many support them, though another has more
RIVALRY = 2.0  # shares of votes by which a reference loses support, for each by which another has more


@dataclass(frozen=True)
class SupportedReferences(Filter):
    """Reject what opposes a reference: the more recent updates agree with that reference, the less has to oppose it.

    In a round of few clients with different data, the mean of the honest updates is mostly chance. Three references do
    not depend on a single round. Which of them honest updates agree with changes during training, and shows in the
    updates themselves, at least 400 of recent rounds, each remembered as a sketch of 2048 numbers:

    * The model, which is the sum of all rounds. An update agrees by its cosine with it.
    * The movement of the model. An honest update turns away from where the model has moved since similar updates came,
      because the slope is less there; a reversed one turns towards it, however many send the same. See turning.py.
    * The common direction: for each update, the mean of the other remembered directions, without those that oppose it,
      and with as much of the others as the first two references trust them. Starting with all of them, this is repeated
      five times. Updates rejected in their own round are remembered like all others, so that no verdict confirms
      itself.

    Each has a share s of the votes: of the updates that agree with it. An update keeps 2 + 2 z / t of its weight, from
    0 to 1, where z is its agreement in units of a typical one, and t = ½ · 10^((high − s') / (high − low)), from ½ to
    5. Here s' = s − 2 (best share of the three − s): a reference that has less support than another one is tolerant.
    But the first two tolerate at most 1.5 · 3.33^((high + δ − s) / δ), from 1.5 to 5, where δ = high − low: with a
    large share of their own they still reject what opposes them by far. The share of the third says less, because it is
    chosen to agree with many. The weights of the three references are multiplied.

    * The vote of an update depends on its own round first: on its mean cosine with the others, which share votes as
      below, compared with the median of the round. It is multiplied by 1 from one median absolute deviation above on,
      by 0 from one below on, by 0.5 at the median. Where most of a round are honest, those that oppose them hardly
      count later, whatever earlier rounds were like.
    * A crowded direction counts less for each that sends it: votes are divided by Σ vⱼ max(0, cⱼ)², relative to the
      median, if that is more than 1. Votes fall by 3 % a round. In the round, near-duplicates share votes as in
      `NearDuplicates`, with eᵢⱼ in the place of its square.
    * An update that resembles no remembered ones, while others do, loses weight and vote: see resemblance.py.
    * Memory has no say about weights where more than half of a round agrees (mutual cosines of at least 0.6): updates
      are then judged by the direction of that majority, which has all its votes.

    In the first round only near-duplicates lose weight. Where all would be rejected, none is. The score is the largest
    −z / t: from 1 on an update is rejected.

    Args:
        low: Up to this share of agreeing votes a reference is as tolerant as can be.
        high: From this share on it is as strict as can be.
    """

    low: float = 0.5
    high: float = 0.57

    def __post_init__(self) -> None:
        if not 0.5 <= self.low < self.high <= 1:
            raise ValueError(
                f"SupportedReferences needs 0.5 <= low < high <= 1, got low {self.low} and high {self.high}"
            )

    def init(self) -> State:
        return ReferenceMemory()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        # A memory without models is empty, or one of an earlier version, which is begun anew.
        memory: ReferenceMemory = ReferenceMemory() if state.models is None else state
        seed = derive(cohort.seed, "supported references") if memory.seed is None else memory.seed
        rows, params = cohort.trainable(), cohort.params[None, : cohort.layout.n_trainable]
        sketches, model = unit_sketches(rows, SKETCH_SIZE, seed).double(), sketch_model(params, seed)
        # All but the sketches is small, and goes to the CPU: a GPU would be waited for at each of the steps.
        similarity = cosines(rows).cpu()
        votes = _share_votes(similarity, memory.baseline)
        with_model, in_round = cosines_with(rows, params)[:, 0].cpu(), _agree_in_round(similarity, votes)
        comparison = compare(memory, sketches, model)
        if comparison is not None:
            in_round = in_round * comparison.resemblance.to(in_round)
        now = Arrivals(sketches, model, similarity.diagonal() > 0, with_model, in_round)
        agreement, weights = self._judge(memory, now, comparison, similarity, votes)
        after = remember(replace(memory, seed=seed), now, comparison, similarity)
        scores, weights = (upload(values.to(cohort.weights.dtype), rows.device) for values in (-agreement, weights))
        return Judgment(scores, weights), after

    def _judge(
        self,
        memory: ReferenceMemory,
        now: Arrivals,
        comparison: Comparison | None,
        similarity: Float[Tensor, "n n"],
        votes: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """How much each update agrees with what it is judged by, in tolerances, and its weight."""
        votes = votes if comparison is None else torch.minimum(votes, comparison.alone)
        majority = find_majority(similarity)
        if bool(majority.any()):
            agreement = relative_to_typical(cosine_with_members(similarity, majority))
            weights = torch.where(majority, 1, votes) * soften(agreement, 1.0)
        elif comparison is None:
            agreement, weights = torch.zeros_like(votes), votes
        else:
            agreement, trust = self._trust(recall(memory, now, comparison, votes), len(votes))
            weights = votes * trust * torch.where(now.moved, comparison.resemblance.to(trust), 1)
        return agreement, weights if bool((weights > 0).any()) else votes

    def _trust(self, recent: Recent, n: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """How much the last n updates agree with the three references, in tolerances, and their trust."""
        agreements = [relative_to_typical(recent.with_model), relative_to_typical(recent.turns)]
        shares = [_find_support(recent.votes, agreement > 0) for agreement in agreements]
        votes = recent.votes * _multiply_trust(self._apply_tolerance(agreements, shares))
        common = _find_common_direction(recent.sketches, votes)
        agreements, shares = [*agreements, common], [*shares, _find_support(votes, common > CLEAR)]
        in_tolerances = self._apply_tolerance([agreement[-n:] for agreement in agreements], shares)
        return in_tolerances.amin(dim=0), _multiply_trust(in_tolerances)

    def _apply_tolerance(self, agreements: list[Float[Tensor, " k"]], shares: list[float]) -> Float[Tensor, "r k"]:
        """Agreement with each reference, divided by what that reference tolerates."""
        step = self.high - self.low
        support = [share - RIVALRY * (max(shares) - share) for share in shares]
        tolerances = [_find_tolerance(STRICT, (self.high - one) / step) for one in support]
        for i, share in enumerate(shares[:2]):  # the model and its movement
            tolerances[i] = min(tolerances[i], _find_tolerance(MODERATE, (self.high + step - share) / step))
        return torch.stack([z / tolerance for z, tolerance in zip(agreements, tolerances, strict=True)])


def _find_tolerance(least: float, missing: float) -> float:
    """From `least`, where no support is missing, to WIDE, where a whole step or more is."""
    return least * math.pow(WIDE / least, min(1.0, max(0.0, missing)))


def _multiply_trust(in_tolerances: Float[Tensor, "r k"]) -> Float[Tensor, " k"]:
    """For each reference 1 up to half of its tolerance, then less, and 0 from the whole on."""
    return (2 + 2 * in_tolerances).clamp(0, 1).prod(dim=0)


def _find_support(votes: Float[Tensor, " k"], agrees: Tensor) -> float:
    """The share of votes that agree."""
    return float((votes * agrees).sum() + UNDECIDED / 2) / float(votes.sum() + UNDECIDED)


def _share_votes(similarity: Float[Tensor, "n n"], baseline: float | None) -> Float[Tensor, " n"]:
    """Near-duplicates of a round share one vote."""
    baseline = typical_cosine(similarity) if baseline is None else baseline
    if baseline is None:  # a single update
        return torch.ones_like(similarity[0])
    return 1 / (1 + excess_cosines(similarity, baseline).sum(dim=1))


def _agree_in_round(similarity: Float[Tensor, "n n"], votes: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """From 0 to 1, how much each update agrees with the others of its round, compared with the median."""
    others = similarity.clone().fill_diagonal_(0)
    agreement = others @ votes / (votes.sum() - votes).clamp_min(ROUNDING)
    above = agreement - median_of(agreement)
    return (0.5 + above / (2 * median_of(above.abs()).clamp_min(ROUNDING))).clamp(0, 1)


def _find_common_direction(sketches: Float[Tensor, "k s"], votes: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """How much every update agrees with the mean of the others that agree with it, in units of a typical agreement."""
    kept, agreement, own = torch.ones_like(votes), votes, sketches.square().sum(dim=1).cpu()
    for _ in range(REPEATS):
        counts = votes * kept
        along = (sketches @ (upload(counts, sketches.device) @ sketches)).cpu()
        agreement = relative_to_typical(along - counts * own)
        kept = (0.5 + agreement).clamp(0, 1)
    return agreement
