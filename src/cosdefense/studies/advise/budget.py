"""How large a tournament fits into a time: how many defenses, attacks, rounds and seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from ...catalog.options import ConfigError
from ...data import Dataset
from ...runs.experiment import Experiment
from ...runs.records import RoundRecord
from ...runs.single_run import run

TRIAL_ROUNDS = 6  # that are timed; the first one is not typical
RESERVE = 0.9  # the share of the time that is planned: attacks take some, too
FEWEST_ROUNDS = 5  # of a run: fewer say nothing
ENOUGH_ROUNDS, ENOUGH_SHARE = 30, 0.25  # so many, and this share of the file's: then a larger tournament is better
SMALLEST = (4, 3)  # defenses and attacks, the reference and none among them
EVALUATIONS = 20  # of a run, two of them in the last tenth


@dataclass(frozen=True)
class Costs:
    """Seconds: of starting a run, of training a round, of an evaluation, of each defense in a round."""

    start: float
    round: float
    evaluation: float
    defenses: tuple[float, ...]


@dataclass(frozen=True)
class Size:
    """How large a tournament is, the reference and the attack none counted."""

    n_defenses: int
    n_attacks: int
    rounds: int
    n_seeds: int = 1

    @property
    def evaluate_every(self) -> int:
        return max(1, self.rounds // EVALUATIONS)

    def estimate_seconds(self, costs: Costs) -> float:
        evaluations = self.rounds / self.evaluate_every
        runs = self.n_attacks * self.n_seeds
        each = costs.start + self.rounds * costs.round + evaluations * costs.evaluation
        return runs * sum(each + self.rounds * seconds for seconds in costs.defenses[: self.n_defenses])


def plan_size(seconds: float, costs: Costs, n_attacks: int, rounds: int, n_seeds: int) -> Size:
    """The largest tournament that fits: all rounds and as many seeds as fit, or fewer rounds, or fewer participants.

    Rounds are given up first, down to a quarter of the file's and at least 30. Then the least important of attacks and
    defenses in turn. Then rounds again, down to 5. An error where even that takes longer.
    """
    budget, n_defenses = RESERVE * seconds, len(costs.defenses)
    for seeds in range(n_seeds, 0, -1):
        whole = Size(n_defenses, n_attacks, rounds, seeds)
        if whole.estimate_seconds(costs) <= budget:
            return whole
    enough = min(rounds, max(ENOUGH_ROUNDS, math.ceil(ENOUGH_SHARE * rounds)))
    grids = _list_grids(n_defenses, n_attacks)
    for grid in grids:
        fitting = _fit_rounds(Size(*grid, rounds), budget, costs)
        if fitting.rounds >= enough:
            return fitting
    smallest = _fit_rounds(Size(*grids[-1], rounds), budget, costs)
    if smallest.rounds >= min(FEWEST_ROUNDS, rounds):
        return smallest
    needed = replace(smallest, rounds=min(FEWEST_ROUNDS, rounds)).estimate_seconds(costs) / RESERVE / 60
    raise ConfigError(
        f"--minutes must be at least {_round_up(needed):g} for {grids[-1][0]} defenses, {grids[-1][1]} attacks and "
        f"{min(FEWEST_ROUNDS, rounds)} rounds, got {seconds / 60:g}"
    )


def minutes_for_all(costs: Costs, n_attacks: int, rounds: int) -> float:
    """How long every defense against every attack takes with all rounds and one seed."""
    whole = Size(len(costs.defenses), n_attacks, rounds)
    return _round_up(whole.estimate_seconds(costs) / RESERVE / 60)


def _list_grids(n_defenses: int, n_attacks: int) -> list[tuple[int, int]]:
    """From all participants to the fewest: a defense less, an attack less, in turn."""
    least_defenses, least_attacks = min(SMALLEST[0], n_defenses), min(SMALLEST[1], n_attacks)
    grids = [(n_defenses, n_attacks)]
    while grids[-1] != (least_defenses, least_attacks):
        defenses, attacks = grids[-1]
        drops_defense = attacks == least_attacks or (defenses > least_defenses and len(grids) % 2 == 1)
        grids.append((defenses - 1, attacks) if drops_defense else (defenses, attacks - 1))
    return grids


def _fit_rounds(size: Size, budget: float, costs: Costs) -> Size:
    """The same with as many rounds as fit; 0 where not even the start does."""
    low, high = 0, size.rounds
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if replace(size, rounds=middle).estimate_seconds(costs) <= budget else (low, middle - 1)
        )
    return replace(size, rounds=low)


def _round_up(minutes: float) -> float:
    """To two digits, so that a command with this number is long enough."""
    scale = 10.0 ** (math.floor(math.log10(max(minutes, 1e-3))) - 1)
    return round(math.ceil(minutes / scale) * scale, 6)


def measure_costs(
    experiment: Experiment, dataset: Dataset, device: torch.device, defenses: Sequence[float], limit: float
) -> Costs:
    """Time the first rounds of a run without attack and defense, for about `limit` seconds at most."""
    cell = next(experiment.cells())
    _time_rounds(cell, dataset, device, 1, limit)  # the first run of a process is slower than all others
    starting, steps, evaluations = _time_rounds(cell, dataset, device, TRIAL_ROUNDS, limit)
    evaluation = median(evaluations)
    seconds = max(0.0, median(steps) - evaluation)
    return Costs(max(0.0, starting - seconds - evaluation), seconds, evaluation, tuple(defenses))


def _time_rounds(
    cell: Experiment, dataset: Dataset, device: torch.device, rounds: int, limit: float
) -> tuple[float, list[float], list[float]]:
    """Seconds up to the end of the first round; of each round; of each evaluation, which every round has."""
    training = replace(cell.training, rounds=min(rounds, cell.training.rounds), evaluate_every=1)
    ends, evaluations = list[float](), list[float]()

    def note(record: RoundRecord) -> None:
        ends.append(time.monotonic())
        evaluations.append(record.seconds.get("evaluate", 0.0))
        if ends[-1] - start > limit:
            raise _LimitReached

    start = time.monotonic()
    with TemporaryDirectory() as folder, suppress(_LimitReached):
        run(replace(cell, training=training), Path(folder) / "run", dataset, device, on_round=note)
    steps = [later - earlier for earlier, later in pairwise(ends)]
    return ends[0] - start, steps or [ends[0] - start], evaluations


class _LimitReached(Exception):
    """The rounds so far must do."""
