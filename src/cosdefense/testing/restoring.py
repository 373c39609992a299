"""`check_restoring`: a search for rounds in which an honest majority agrees and the model does not follow it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..core import Defense, State
from .agreement import Agreement
from .scenario_search import draw_scenario, mutate, openings, simplify
from .scenarios import Scenario

N_BEST = 8  # the scenarios that are changed further
N_CACHED = 64  # memories of the defense that are kept


@dataclass(frozen=True)
class WorstRound:
    """The round with the least progress that was found. `replay` runs it again, `scenario` builds its rows."""

    scenario: Scenario
    progress: float
    skipped: str | None  # why the defense skipped the round, if it did
    n_rounds_tried: int

    def replay(self, defense: Defense) -> float:
        """The progress of a defense in the same round, after the same history."""
        memory = _run_history(defense, self.scenario)
        return _run_last(defense, self.scenario, memory)[0]

    def __str__(self) -> str:
        reason = f" (skipped: {self.skipped})" if self.skipped else ""
        return f"progress {self.progress:.3g}{reason}\n{self.scenario}\n{self.scenario!r}"


def check_restoring(
    defense: Defense, agreement: Agreement = Agreement(), *, n_rounds: int = 3000, seed: int = 0
) -> WorstRound:
    """Check that a defense follows an honest majority that agrees, whatever it remembers: see `Agreement`.

    This is a search, not a proof. It tries known attacks, mixtures of them and random histories, and changes the worst
    scenarios further. It stops at the first violation and simplifies it.

    Args:
        defense: The defense.
        agreement: The conditions and the promise.
        n_rounds: How many rounds the search may run.
        seed: Of the search. The same seed finds the same.

    Returns:
        The round with the least progress, of a defense that keeps the promise in all rounds that were tried.

    Raises:
        AssertionError: The promise is broken. The message describes the counterexample.
    """
    worst = find_worst_round(defense, agreement, n_rounds=n_rounds, seed=seed)
    assert worst.progress >= agreement.min_progress, (
        f"{defense} is not restoring: an honest majority agrees, and the model does not follow it: {worst}"
    )
    return worst


def find_worst_round(
    defense: Defense, agreement: Agreement = Agreement(), *, n_rounds: int = 3000, seed: int = 0
) -> WorstRound:
    """Search for the least progress. A violation ends the search; it is simplified before it is returned."""
    search = _Search(defense, agreement, n_rounds, seed)
    return search.run()


class _Search:
    """The budget, the best scenarios so far, and memories of the defense that several scenarios share."""

    def __init__(self, defense: Defense, agreement: Agreement, n_rounds: int, seed: int) -> None:
        self._defense, self._agreement, self._n_rounds = defense, agreement, n_rounds
        self._rng = random.Random(seed)
        self._n_tried = 0
        self._best: list[WorstRound] = []
        self._memories: dict[tuple[object, ...], State] = {}

    def run(self) -> WorstRound:
        for scenario in self._propose():
            found = self._try(scenario)
            if found.progress < self._agreement.min_progress:
                return self._simplify(found)
            self._best = sorted([*self._best, found], key=lambda worst: worst.progress)[:N_BEST]
        return replace(self._best[0], n_rounds_tried=self._n_tried)

    def _propose(self) -> Iterator[Scenario]:
        yield from openings(self._agreement)
        while self._n_tried < self._n_rounds / 2:
            yield draw_scenario(self._agreement, self._rng)
        while self._n_tried < self._n_rounds:
            yield mutate(self._rng.choice(self._best).scenario, self._agreement, self._rng)

    def _simplify(self, found: WorstRound) -> WorstRound:
        """Take the first simpler scenario that is a violation too, until there is none."""
        simpler: WorstRound | None = found
        while simpler is not None:
            found = simpler
            tried = map(self._try, simplify(found.scenario))
            simpler = next((other for other in tried if other.progress < self._agreement.min_progress), None)
        return replace(found, n_rounds_tried=self._n_tried)

    def _try(self, scenario: Scenario) -> WorstRound:
        progress, skipped = _run_last(self._defense, scenario, self._remember(scenario))
        self._n_tried += 1
        return WorstRound(scenario, progress, skipped, self._n_tried)

    def _remember(self, scenario: Scenario) -> State:
        opposite = any(rounds.honest.direction == "opposite" for rounds in scenario.history)
        key = (scenario.history, scenario.n_clients, scenario.seed, opposite and scenario.last.honest.direction)
        if key not in self._memories:
            if len(self._memories) >= N_CACHED:
                self._memories.pop(next(iter(self._memories)))
            self._memories[key] = _run_history(self._defense, scenario)
            self._n_tried += scenario.n_earlier_rounds
        return self._memories[key]


def _run_history(defense: Defense, scenario: Scenario) -> State:
    memory = defense.init()
    for cohort in scenario.build_history():
        _, _, memory = defense.run_round(cohort, memory)
    return memory


def _run_last(defense: Defense, scenario: Scenario, memory: State) -> tuple[float, str | None]:
    """The progress of the last round, and why it was skipped, if it was."""
    cohort = scenario.build_last()
    mean = cohort.updates[: scenario.n_clients - scenario.last.n_malicious].mean(dim=0)
    _, verdict, _ = defense.run_round(cohort, memory)
    return float(verdict.update @ mean / (mean @ mean)), verdict.skipped
