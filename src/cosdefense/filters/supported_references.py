"""Supported references: reject updates that oppose the model or the common direction of recent updates.

This rule was made for this project. docs/factions.md explains why it works and what it was measured on,
docs/factions-history.md what else was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State, derive, running_average
from ..ops import cosines, cosines_with, median_of, unit_sketches, upload
from .agreement import cosine_with_members, find_majority, relative_to_typical, soften
from .near_duplicates import excess_cosines, typical_cosine

SKETCH_SIZE = 2048  # numbers kept of an update; the error of a cosine is 0.02
MIN_REMEMBERED = 400  # updates of recent rounds
DECAY = 0.97  # of the vote of a remembered update from round to round
BASELINE_DECAY = 0.95  # of the typical cosine, as in NearDuplicates
UNDECIDED = 10  # votes, half for a reference and half against it, that few remembered updates must outweigh
REPEATS = 5  # of finding the common direction: it hardly changes afterwards
ROUNDING = 1e-6  # smaller differences between the agreements of a round mean nothing
CLEAR = 0.3  # of a typical agreement: the common direction is chosen to agree with many, so some agree by chance


@dataclass(frozen=True)
class ReferenceMemory:
    """What `SupportedReferences` remembers of the updates of recent rounds, and of no client.

    Args:
        sketches: One row per update, of norm 1.
        with_model: The cosine of each of them with the model of its round.
        in_round: From 0 to 1, how much each of them agreed with its round.
        rounds: In which round each of them came.
        n_rounds: How many rounds there were.
        seed: Of the sketches: who knows it can deceive the rule.
        baseline: The running average of a high quantile of the cosines of a round, see NearDuplicates.
    """

    sketches: Float[Tensor, "m s"] | None = None
    with_model: Float[Tensor, " m"] | None = None
    in_round: Float[Tensor, " m"] | None = None
    rounds: Int[Tensor, " m"] | None = None
    n_rounds: int = 0
    seed: int | None = None
    baseline: float | None = None


@dataclass(frozen=True)
class Recent:
    """The updates of recent rounds and of this one, which come last.

    Args:
        sketches: Of norm 1.
        with_model: Their cosines with the model of their round.
        votes: How much each counts. Old ones count less, those in a crowded direction, and those that disagreed with
            their round.
    """

    sketches: Float[Tensor, "k s"]
    with_model: Float[Tensor, " k"]
    votes: Float[Tensor, " k"]


@dataclass(frozen=True)
class SupportedReferences(Filter):
    """Reject what opposes a reference, as far as most recent updates support that reference.

    In a round of few clients with different data, the mean of the honest updates is mostly chance. Nearly all honest
    updates agree with one of two directions that no single round decides: early in training, and where the model was
    damaged, with the common direction of recent updates; later with the model itself, which is the sum of all rounds.
    Each of them says nothing at other times. Which one to use shows in the updates themselves, at least 400 of recent
    rounds, each remembered as a sketch of 2048 numbers:

    * A reference counts by the share of remembered votes that agree with it: not at all up to `low`, fully from `high`
      on. An update then has the weight 1 + 2 z, from 0 to 1, where z is its agreement in units of a typical one: it
      is rejected if it opposes the reference half as much as others agree.
    * The common direction is, for each update, the mean of the other remembered directions, without those that oppose
      it, or that oppose the model as far as the model counts. Starting with all of them, this is repeated five times.
      Updates rejected in their own round are remembered like all others, so that no verdict confirms itself.
    * The vote of an update depends on its own round first: on its mean cosine with the others, which share votes as
      below, compared with the median of the round. It is multiplied by 1 from one median absolute deviation above on,
      by 0 from one below on, by 0.5 at the median. Where most of a round are honest, those that oppose them hardly
      count later, whatever earlier rounds were like.
    * A crowded direction counts less for each that sends it: votes are divided by Σ vⱼ max(0, cⱼ)², relative to the
      median, if that is more than 1. Votes fall by 3 % a round. In the round, near-duplicates share votes as in
      `NearDuplicates`, with eᵢⱼ in the place of its square.
    * Memory has no say where more than half of a round agrees (mutual cosines of at least 0.6): updates are then judged
      by the direction of that majority, which has all its votes.

    In the first round only near-duplicates lose weight. Where all would be rejected, none is. The score is minus the
    least z, times how much the reference counts.

    Args:
        low: Up to this share of agreeing votes a reference does not count.
        high: From this share on it counts fully.
    """

    low: float = 0.58
    high: float = 0.66

    def __post_init__(self) -> None:
        if not 0.5 <= self.low < self.high <= 1:
            raise ValueError(
                f"SupportedReferences needs 0.5 <= low < high <= 1, got low {self.low} and high {self.high}"
            )

    def init(self) -> State:
        return ReferenceMemory()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        memory: ReferenceMemory = state
        seed = derive(cohort.seed, "supported references") if memory.seed is None else memory.seed
        rows = cohort.trainable()
        sketches = unit_sketches(rows, SKETCH_SIZE, seed)
        # All but the sketches is small, and goes to the CPU: a GPU would be waited for at each of the steps.
        similarity = cosines(rows).cpu()
        with_model = cosines_with(rows, cohort.params[None, : rows.shape[1]])[:, 0].cpu()
        votes = _share_votes(similarity, memory.baseline)
        now = Recent(sketches.double(), with_model, _agree_in_round(similarity, votes))
        recent, votes = _recall(memory, now, votes)
        agreement, weights = self._judge(similarity, recent, votes)
        after = _remember(replace(memory, seed=seed), similarity, now, similarity.diagonal() > 0)
        scores, weights = (upload(values.to(cohort.weights.dtype), rows.device) for values in (-agreement, weights))
        return Judgment(scores, weights), after

    def _judge(
        self, similarity: Float[Tensor, "n n"], recent: Recent | None, votes: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """How much each update agrees with what it is judged by, and its weight."""
        majority = find_majority(similarity)
        if bool(majority.any()):
            agreement = relative_to_typical(cosine_with_members(similarity, majority))
            weights = torch.where(majority, 1, votes) * soften(agreement, 1.0)
        elif recent is None:
            agreement, weights = torch.zeros_like(votes), votes
        else:
            agreement, trust = self._compare(recent, len(votes))
            weights = votes * trust
        return agreement, weights if bool((weights > 0).any()) else votes

    def _compare(self, recent: Recent, n: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """How much the last n updates agree with the two references, and their trust in the light of both."""
        model = relative_to_typical(recent.with_model)
        model_counts = self._count_support(recent.votes, model > 0)
        trust = 1 - model_counts * (1 - soften(model, 0.5))
        common = _find_common_direction(recent.sketches, recent.votes * trust)
        common_counts = self._count_support(recent.votes * trust, common > CLEAR)
        trust = trust * (1 - common_counts * (1 - soften(common, 0.5)))
        return torch.minimum(model_counts * model, common_counts * common)[-n:], trust[-n:]

    def _count_support(self, votes: Float[Tensor, " k"], agrees: Tensor) -> float:
        """How much a reference counts, from 0 to 1."""
        share = float((votes * agrees).sum() + UNDECIDED / 2) / float(votes.sum() + UNDECIDED)
        return min(1.0, max(0.0, (share - self.low) / (self.high - self.low)))


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


def _recall(memory: ReferenceMemory, now: Recent, votes: Float[Tensor, " n"]) -> tuple[Recent | None, Tensor]:
    """The remembered updates with those of this round, and the votes of the latter. None: nothing is remembered.

    The votes of `now` are those that its round gave, and `votes` those that near-duplicates share.
    """
    if memory.sketches is None or memory.rounds is None or memory.with_model is None or memory.in_round is None:
        return None, votes
    if len(memory.sketches) == 0:
        return None, votes
    # In float64, so that the order of the rows does not show.
    past = memory.sketches.to(now.sketches)
    past_votes = DECAY ** (memory.n_rounds - memory.rounds.cpu()).double()
    counts = upload(past_votes, past.device)
    crowding = ((past @ past.T).clamp(0, 1).square() @ counts).cpu()
    typical = median_of(crowding)
    crowding_now = ((now.sketches @ past.T).clamp(0, 1).square() @ counts).cpu() / typical
    votes = torch.minimum(votes, 1 / crowding_now.clamp_min(1))
    past_votes = past_votes / (crowding / typical).clamp_min(1) * memory.in_round.to(past_votes)
    with_model = torch.cat([memory.with_model.to(now.with_model), now.with_model])
    return Recent(
        torch.cat([past, now.sketches]), with_model, torch.cat([past_votes, votes * now.votes.to(votes)])
    ), votes


def _find_common_direction(sketches: Float[Tensor, "k s"], votes: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """How much every update agrees with the mean of the others that agree with it, in units of a typical agreement."""
    kept, agreement, own = torch.ones_like(votes), votes, sketches.square().sum(dim=1).cpu()
    for _ in range(REPEATS):
        counts = votes * kept
        along = (sketches @ (upload(counts, sketches.device) @ sketches)).cpu()
        agreement = relative_to_typical(along - counts * own)
        kept = (0.5 + agreement).clamp(0, 1)
    return agreement


def _pick(sketches: Float[Tensor, "m s"], chosen: Bool[Tensor, " m"]) -> Float[Tensor, "k s"]:
    """These sketches, without waiting for a GPU."""
    return sketches[upload(chosen.nonzero().flatten(), sketches.device)]


def _remember(
    memory: ReferenceMemory, similarity: Float[Tensor, "n n"], now: Recent, moved: Bool[Tensor, " n"]
) -> ReferenceMemory:
    """Whole rounds are forgotten, the oldest first, as long as enough updates are left. Zero rows are not kept.

    Nor is a memory of an earlier version, which lacks a field.
    """
    known = memory.in_round is not None
    rounds = torch.full((int(moved.sum()),), memory.n_rounds, dtype=torch.int64)
    new = (_pick(now.sketches, moved).float(), now.with_model[moved], now.votes[moved], rounds)
    past = (memory.sketches, memory.with_model, memory.in_round, memory.rounds)
    sketches, with_model, in_round, rounds = (
        torch.cat([early.to(late), late]) if known and early is not None else late
        for early, late in zip(past, new, strict=True)
    )
    if len(rounds) > MIN_REMEMBERED:
        kept = rounds >= rounds[-MIN_REMEMBERED]
        sketches = _pick(sketches, kept)
        with_model, in_round, rounds = with_model[kept], in_round[kept], rounds[kept]
    typical = typical_cosine(similarity)
    return ReferenceMemory(
        sketches,
        with_model,
        in_round,
        rounds,
        n_rounds=memory.n_rounds + 1,
        seed=memory.seed,
        baseline=memory.baseline if typical is None else running_average(memory.baseline, typical, BASELINE_DECAY),
    )
