"""The updates of recent rounds: what `SupportedReferences` remembers, and how the updates of a round compare."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import running_average
from ..ops import median_of, row_norms, unit_sketches, upload
from .near_duplicates import typical_cosine
from .resemblance import N_TYPICAL, find_nearest, weigh_resemblance
from .turning import find_turns

SKETCH_SIZE = 2048  # numbers kept of an update; the error of a cosine is 0.02
MIN_REMEMBERED = 400  # updates of recent rounds
DECAY = 0.97  # of the vote of a remembered update from round to round
BASELINE_DECAY = 0.95  # of the typical cosine, as in NearDuplicates


@dataclass(frozen=True)
class ReferenceMemory:
    """What `SupportedReferences` remembers of the updates of recent rounds, and of no client.

    Args:
        sketches: One row per update, of norm 1.
        with_model: The cosine of each of them with the model of its round.
        turns: How much each of them turned away from where the model had moved, see `find_turns`.
        in_round: From 0 to 1, how much each of them agreed with its round and resembled earlier ones.
        rounds: In which round each of them came.
        models: A sketch of the model of every round since the first of these, with its norm: in float64, so that one
            that did not move has moved by exactly nothing.
        nearest: How much each of the last 400 updates resembled those before it, see `find_nearest`.
        n_rounds: How many rounds there were.
        seed: Of the sketches: who knows it can deceive the rule.
        baseline: The running average of a high quantile of the cosines of a round, see NearDuplicates.
    """

    sketches: Float[Tensor, "m s"] | None = None
    with_model: Float[Tensor, " m"] | None = None
    turns: Float[Tensor, " m"] | None = None
    in_round: Float[Tensor, " m"] | None = None
    rounds: Int[Tensor, " m"] | None = None
    models: Float[Tensor, "r s"] | None = None
    nearest: Float[Tensor, " k"] | None = None
    n_rounds: int = 0
    seed: int | None = None
    baseline: float | None = None


@dataclass(frozen=True)
class Arrivals:
    """The updates of one round, with what is remembered of them.

    Args:
        sketches: Of norm 1, in float64, so that the order of the rows does not show.
        model: A sketch of the model of the round, with its norm.
        moved: Which updates are not zero.
        with_model: The cosine of each update with the model.
        in_round: From 0 to 1, how much each of them agreed with its round and resembled earlier ones.
    """

    sketches: Float[Tensor, "n s"]
    model: Float[Tensor, " s"]
    moved: Bool[Tensor, " n"]
    with_model: Float[Tensor, " n"]
    in_round: Float[Tensor, " n"]


@dataclass(frozen=True)
class Comparison:
    """The updates of a round beside the remembered ones.

    Args:
        turns: How much each of them turns away from where the model has moved.
        nearest: How much each of them resembles remembered ones. Empty if too few are remembered.
        resemblance: From 0 to 1, how much each of them counts by that.
        alone: From 0 to 1: one over how many times as many as usual resemble an update, at most 1.
        past_votes: How much each remembered update counts by its age, by `alone`, and by `in_round`.
    """

    turns: Float[Tensor, " n"]
    nearest: Float[Tensor, " k"]
    resemblance: Float[Tensor, " n"]
    alone: Float[Tensor, " n"]
    past_votes: Float[Tensor, " m"]


@dataclass(frozen=True)
class Recent:
    """The updates of recent rounds and of this one, which come last.

    Args:
        sketches: Of norm 1.
        with_model: Their cosines with the model of their round.
        turns: How much they turned away from where the model had moved.
        votes: How much each counts. Old ones count less, those in a crowded direction, those that disagreed with
            their round, and those that resembled no earlier ones.
    """

    sketches: Float[Tensor, "k s"]
    with_model: Float[Tensor, " k"]
    turns: Float[Tensor, " k"]
    votes: Float[Tensor, " k"]


def sketch_model(params: Float[Tensor, "1 k"], seed: int) -> Float[Tensor, " s"]:
    """A sketch of the model: differences of two of them are sketches of how it moved."""
    return (unit_sketches(params, SKETCH_SIZE, seed).double() * row_norms(params).double()[:, None])[0]


def compare(memory: ReferenceMemory, sketches: Float[Tensor, "n s"], model: Float[Tensor, " s"]) -> Comparison | None:
    """The updates of a round beside the remembered ones. None: nothing is remembered."""
    if memory.sketches is None or memory.rounds is None or memory.models is None or memory.in_round is None:
        return None
    if len(memory.sketches) == 0:
        return None
    past, rounds = memory.sketches.to(sketches), memory.rounds.cpu()
    ages = DECAY ** (memory.n_rounds - rounds).double()
    counts = upload(ages, past.device)
    cosines = sketches @ past.T
    crowding = (cosines.clamp(0, 1).square() @ counts).cpu()
    past_crowding = ((past @ past.T).clamp(0, 1).square() @ counts).cpu()
    usual, nearest = median_of(past_crowding), find_nearest(cosines)
    since = rounds - (memory.n_rounds - len(memory.models))
    return Comparison(
        find_turns(cosines, sketches, past, model - memory.models.to(model), since, counts),
        nearest,
        weigh_resemblance(nearest, memory.nearest) if len(nearest) > 0 else torch.ones_like(crowding),
        1 / (crowding / usual).clamp_min(1),
        ages / (past_crowding / usual).clamp_min(1) * memory.in_round.to(ages),
    )


def recall(memory: ReferenceMemory, now: Arrivals, comparison: Comparison, votes: Float[Tensor, " n"]) -> Recent:
    """The remembered updates, then those of this round, whose votes in this round are given."""
    return Recent(
        _join(memory.sketches, now.sketches),
        _join(memory.with_model, now.with_model),
        _join(memory.turns, comparison.turns),
        _join(comparison.past_votes, votes * now.in_round.to(votes)),
    )


def remember(
    memory: ReferenceMemory, now: Arrivals, comparison: Comparison | None, similarity: Float[Tensor, "n n"]
) -> ReferenceMemory:
    """Whole rounds are forgotten, the oldest first, as long as enough updates are left. Zero rows are not kept."""
    turns = torch.zeros_like(now.in_round) if comparison is None else comparison.turns
    nearest = turns[:0] if comparison is None or len(comparison.nearest) == 0 else comparison.nearest[now.moved]
    rounds = torch.full((int(now.moved.sum()),), memory.n_rounds, dtype=torch.int64)
    new = (_pick(now.sketches, now.moved), *(kept[now.moved] for kept in (now.with_model, turns, now.in_round)), rounds)
    past = (memory.sketches, memory.with_model, memory.turns, memory.in_round, memory.rounds)
    sketches, with_model, turns, in_round, rounds = (_join(early, late) for early, late in zip(past, new, strict=True))
    models = _join(memory.models, now.model[None])
    if len(rounds) > MIN_REMEMBERED:
        kept = rounds >= rounds[-MIN_REMEMBERED]
        sketches = _pick(sketches, kept)
        with_model, turns, in_round, rounds = with_model[kept], turns[kept], in_round[kept], rounds[kept]
    first = int(rounds[0]) if len(rounds) > 0 else memory.n_rounds
    models = models[-(memory.n_rounds + 1 - first) :]
    typical = typical_cosine(similarity)
    return ReferenceMemory(
        sketches.float(), with_model, turns, in_round, rounds, models,
        nearest=_join(memory.nearest, nearest.sort().values)[-N_TYPICAL:],  # the order of a round does not show
        n_rounds=memory.n_rounds + 1,
        seed=memory.seed,
        baseline=memory.baseline if typical is None else running_average(memory.baseline, typical, BASELINE_DECAY),
    )  # fmt: skip


def _join(early: Tensor | None, late: Tensor) -> Tensor:
    return late if early is None else torch.cat([early.to(late), late])


def _pick(sketches: Float[Tensor, "m s"], chosen: Bool[Tensor, " m"]) -> Float[Tensor, "k s"]:
    """These sketches, without waiting for a GPU."""
    return sketches[upload(chosen.nonzero().flatten(), sketches.device)]
