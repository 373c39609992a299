"""Local search around the most damaging of some trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol, TypeVar, runtime_checkable


@runtime_checkable
class HasNeighbors(Protocol):
    def neighbors(self, step: float) -> Iterator[Any]: ...


@runtime_checkable
class Trial(Protocol):
    @property
    def candidate(self) -> HasNeighbors: ...

    @property
    def damage(self) -> float: ...


T = TypeVar("T", bound=Trial)


def refine(run: Callable[[Any], T], best: T, trials: int) -> T:
    """Try the neighbors of the best candidate; where none is better, halve the step."""
    step = 0.5
    while trials > 0:
        before = best
        for candidate in islice(before.candidate.neighbors(step), trials):
            best, trials = max(best, run(candidate), key=get_damage), trials - 1
        if best is before:
            step /= 2
    return best


def get_damage(trial: Trial) -> float:
    return trial.damage
