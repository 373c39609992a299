"""What every experiment tracker gets: the settings of a run once, the numbers of each round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..runs.observer import RoundObserver
from ..runs.records import RoundRecord
from ..runs.round_values import describe_round, flatten

Setting = str | int | float | bool


class Tracker(RoundObserver, ABC):
    """Passes a run on to an experiment tracker: `Defended(…, observers=[TensorBoard("logs")])`.

    One object tracks one run. A tracker of your own implements three methods. A round that was passed on before the run
    was resumed is not passed on again.
    """

    _next = 0  # the first round that was not passed on

    @abstractmethod
    def begin(self, settings: Mapping[str, Setting]) -> int:
        """The run begins or is resumed. Return how many of its rounds the tracker already holds."""

    @abstractmethod
    def log(self, number: int, values: Mapping[str, float]) -> None:
        """A round and its numbers by name. Rounds count from 0. What is not finite is left out."""

    def end(self) -> None:
        """The run is finished, or was stopped by an error."""

    def started(self, header: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> None:
        self._next = self.begin(list_settings(header))
        for record in rounds:
            self.recorded(record)

    def recorded(self, record: RoundRecord) -> None:
        if record.round >= self._next:
            self.log(record.round, list_values(record))
            self._next = record.round + 1

    def ended(self) -> None:
        self.end()


class Callback(Tracker):
    """Calls a function with the number and the values of each round: for trackers that are not supported here."""

    def __init__(
        self,
        on_round: Callable[[int, Mapping[str, float]], object],
        on_begin: Callable[[Mapping[str, Setting]], object] | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._on_round, self._on_begin, self._on_end = on_round, on_begin, on_end

    def begin(self, settings: Mapping[str, Setting]) -> int:
        if self._on_begin:
            self._on_begin(settings)
        return 0

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self._on_round(number, values)

    def end(self) -> None:
        if self._on_end:
            self._on_end()


def list_values(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round, under the names that they have in `cosdefense.read_runs`."""
    values = describe_round(record)
    del values["round"]
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    flags = {name: value for name, value in numbers.items() if not isinstance(value, bool)}
    return {name: float(value) for name, value in flags.items() if math.isfinite(value)}


def list_settings(header: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of a run by dotted names: `training.rounds`."""
    settings = {**(header.get("experiment") or {}), "device": header.get("device")}
    known = {name: header[name] for name in ("attack", "defense", "seed") if name in header}
    return {name: value for name, value in flatten({**settings, **known}, ".").items() if value is not None}
