"""Neighbor votes: reject updates that are the opposite of what other clients sent in this and in recent rounds.

This rule was made for this project. docs/factions.md explains why it works, what it was measured on, and what else was
tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State, derive, running_average
from ..ops import cosine, cosines, median_of, row_norms, unit_sketches
from .agreement import cosine_with_members, find_majority, relative_to_typical, soften
from .near_duplicates import excess_cosines, typical_cosine

SKETCH_SIZE = 2048  # numbers kept of an update; the error of a cosine is 0.02
MIN_REMEMBERED = 400  # updates of recent rounds: with 10 groups of clients and 30 % attackers, 28 honest ones a group
DECAY = 0.97  # of the vote of a remembered update from round to round, and of nothing else
BASELINE_DECAY = 0.95  # of running averages, as in NearDuplicates
UNDECIDED = 0.5  # votes that say nothing: where nobody resembles an update, chance must not reject it
HEARD = 0.62  # the share of updates that must agree with a witness: with 30 % attackers nearly all honest ones


@dataclass(frozen=True)
class NeighborMemory:
    """What `NeighborVotes` remembers: sketches of updates of recent rounds, and two running averages.

    Args:
        sketches: One row per update, of norm 1.
        rounds: In which round each of them came.
        n_rounds: How many rounds there were.
        seed: Of the sketches: who knows it can deceive the rule.
        baseline: The running average of a high quantile of the cosines of a round, see NearDuplicates.
        with_model: The running average of the share of updates with a positive cosine with the model.
        with_mean: The same with the mean of the remembered directions.
    """

    sketches: Float[Tensor, "m s"] | None = None
    rounds: Int[Tensor, " m"] | None = None
    n_rounds: int = 0
    seed: int | None = None
    baseline: float | None = None
    with_model: float = 0.5
    with_mean: float = 0.5


@dataclass(frozen=True)
class Neighborhood:
    """How the updates of a round relate to those of recent rounds.

    Args:
        support: From −1 to 1: how many of the updates like it or opposite to it are like it.
        crowding: How crowded its direction is, where that of a typical update is 1.
        with_mean: Proportional to its cosine with the mean of the remembered directions.
    """

    support: Float[Tensor, " n"]
    crowding: Float[Tensor, " n"]
    with_mean: Float[Tensor, " n"]


@dataclass(frozen=True)
class NeighborVotes(Filter):
    """Reject an update if most of those that resemble it, or its opposite, are its opposite.

    Ten clients of a round are too few to say who is right, so updates of recent rounds vote too: at least 400, each by
    a sketch of 2048 numbers. The support of an update is Σ vⱼ cⱼ³ / (Σ vⱼ |cⱼ|³ + 0.5), over the other updates of the
    round and the remembered ones; c is a cosine, and the vote v falls by 3 % a round. The third power lets those decide
    that resemble the update or oppose it: clients with the same classes, and those that reverse them. The weight is
    1 + support / tolerance, from 0 to 1. Every update is remembered, rejected or not, so that no verdict confirms
    itself. No client is remembered.

    * **A crowded direction** counts less for each that sends it: a remembered update's vote, and the weight of a new
      one, are divided by Σ vⱼ max(0, cⱼ)² relative to the median, if that is more than 1. In the round near-duplicates
      share votes as in `NearDuplicates`, with eᵢⱼ in the place of its square.
    * **Two witnesses** that err at other times: the model, which is the sum of all rounds, and the mean of the
      remembered directions. As long as training goes well, updates agree with the first; where it is held up, they
      agree with the second. A witness is heard while 62 % or more of all updates in recent rounds agree with it. An
      update is then rejected that opposes it as much as a typical one agrees, and has less weight from half of that
      on.
    * **Memory has no say** where more than half of a round agrees (mutual cosines of at least 0.6): updates are then
      judged by the direction of that majority, which has all its votes.

    In the first round only near-duplicates lose weight. Where all would be rejected, none is. The score is minus the
    support.

    Args:
        tolerance: How negative the support of an update must be until it is rejected.
    """

    tolerance: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.tolerance <= 1:
            raise ValueError(f"NeighborVotes.tolerance must be above 0 and at most 1, got {self.tolerance}")

    def init(self) -> State:
        return NeighborMemory()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        memory: NeighborMemory = state
        if memory.seed is None:
            memory = replace(memory, seed=derive(cohort.seed, "neighbor votes"))
        assert memory.seed is not None
        rows = cohort.trainable()
        similarity = cosines(rows)
        sketches = unit_sketches(rows, SKETCH_SIZE, memory.seed)
        with_model = cosine(rows, cohort.params[: rows.shape[1]]).double()
        near = _compare(similarity, sketches, memory)
        weights = self._weigh(similarity, near, with_model, memory)
        after = _remember(memory, sketches[row_norms(rows) > 0], similarity, with_model, near)
        support = torch.zeros_like(with_model) if near is None else near.support
        return Judgment((-support).to(cohort.weights), weights.to(cohort.weights)), after

    def _weigh(
        self, similarity: Float[Tensor, "n n"], near: Neighborhood | None, with_model: Tensor, memory: NeighborMemory
    ) -> Float[Tensor, " n"]:
        votes = _share_votes(similarity, memory.baseline)
        if near is not None:
            votes = torch.minimum(votes, 1 / near.crowding.clamp_min(1))
        majority = find_majority(similarity)
        if bool(majority.any()):
            agreement = relative_to_typical(cosine_with_members(similarity, majority))
            weights = torch.where(majority, 1, votes) * soften(agreement, 1.0)
        elif near is None:
            weights = votes
        else:
            weights = votes * soften(near.support, self.tolerance)
            for share, agreement in ((memory.with_model, with_model), (memory.with_mean, near.with_mean)):
                if share > HEARD:
                    weights = weights * (2 * relative_to_typical(agreement) + 2).clamp(0, 1)
        return weights if bool((weights > 0).any()) else votes


def _share_votes(similarity: Float[Tensor, "n n"], baseline: float | None) -> Float[Tensor, " n"]:
    """Near-duplicates of a round share one vote."""
    baseline = typical_cosine(similarity) if baseline is None else baseline
    if baseline is None:  # a single update
        return torch.ones_like(similarity[0])
    return 1 / (1 + excess_cosines(similarity, baseline).sum(dim=1))


def _compare(
    similarity: Float[Tensor, "n n"], sketches: Float[Tensor, "n s"], memory: NeighborMemory
) -> Neighborhood | None:
    """How the updates relate to each other and to remembered ones. None: nothing is remembered."""
    if memory.sketches is None or memory.rounds is None or len(memory.sketches) == 0:
        return None
    # In float64, so that the order of the rows does not show.
    sketches, remembered = sketches.double(), memory.sketches.to(sketches.device).double()
    votes = DECAY ** (memory.n_rounds - memory.rounds.to(sketches.device)).double()
    crowding = (remembered @ remembered.T).clamp(0, 1).square() @ votes
    typical = median_of(crowding)
    votes = votes / (crowding / typical).clamp_min(1)
    with_recent, others = (sketches @ remembered.T).clamp(-1, 1), similarity.clone().fill_diagonal_(0)
    cubes, cubes_now = with_recent.pow(3), others.pow(3)
    total = cubes.abs() @ votes + cubes_now.abs().sum(dim=1) + UNDECIDED
    support = (cubes @ votes + cubes_now.sum(dim=1)) / total
    return Neighborhood(support, with_recent.clamp_min(0).square() @ votes / typical, with_recent @ votes)


def _remember(
    memory: NeighborMemory,
    sketches: Float[Tensor, "k s"],
    similarity: Float[Tensor, "n n"],
    with_model: Float[Tensor, " n"],
    near: Neighborhood | None,
) -> NeighborMemory:
    """Whole rounds are forgotten, the oldest first, as long as enough updates are left. Zero rows are not kept."""
    rounds = torch.full((len(sketches),), memory.n_rounds, dtype=torch.int64, device=sketches.device)
    if memory.sketches is not None and memory.rounds is not None:
        sketches = torch.cat([memory.sketches.to(sketches), sketches])
        rounds = torch.cat([memory.rounds.to(rounds), rounds])
        if len(rounds) > MIN_REMEMBERED:
            kept = rounds >= rounds[-MIN_REMEMBERED]
            sketches, rounds = sketches[kept], rounds[kept]
    typical = typical_cosine(similarity)
    return replace(
        memory,
        sketches=sketches,
        rounds=rounds,
        n_rounds=memory.n_rounds + 1,
        baseline=memory.baseline if typical is None else running_average(memory.baseline, typical, BASELINE_DECAY),
        with_model=_update_share(memory.with_model, with_model, memory.n_rounds),
        with_mean=memory.with_mean
        if near is None
        else _update_share(memory.with_mean, near.with_mean, memory.n_rounds),
    )


def _update_share(share: float, agreement: Float[Tensor, " n"], n_rounds: int) -> float:
    """In the first rounds all of them count the same, beside one in which half of the updates agreed."""
    decay = min(BASELINE_DECAY, 1 - 1 / (n_rounds + 2))
    return running_average(share, float((agreement > 0).double().mean()), decay)
