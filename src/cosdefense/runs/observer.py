"""Whoever wants to follow runs while they are made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .records import RoundRecord
from .safe_text import log_failure

if TYPE_CHECKING:
    from .experiment import Experiment


log = logging.getLogger(__name__)


class RoundObserver:
    """Follows one run, round by round. By default nothing happens: override what you want to know."""

    def started(self, header: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> None:
        """The run begins. `rounds`: those that were recorded before it was resumed."""

    def recorded(self, record: RoundRecord) -> None:
        """A round was recorded."""

    def ended(self) -> None:
        """The run is finished, or was stopped by an error. Nothing follows."""


class RoundObservers(RoundObserver):
    """Several observers as one. An exception that one of them raises is logged: it ends nothing."""

    def __init__(self, observers: Sequence[RoundObserver] = ()) -> None:
        for observer in observers:
            if not isinstance(observer, RoundObserver):
                raise TypeError(f"an observer must be a RoundObserver, got {observer!r}")
        self.observers = tuple(observers)

    def started(self, header: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> None:
        self._call(lambda observer: observer.started(header, rounds))

    def recorded(self, record: RoundRecord) -> None:
        self._call(lambda observer: observer.recorded(record))

    def ended(self) -> None:
        self._call(lambda observer: observer.ended())

    def _call(self, call: Callable[[RoundObserver], None]) -> None:
        for observer in self.observers:
            try:
                call(observer)
            except Exception as error:
                log_failure(log, error, "%s failed; the run continues", type(observer).__name__)


@dataclass(frozen=True)
class Job:
    """One run, the folder it is kept in, and how it is called while it runs."""

    cell: Experiment
    folder: Path
    label: str


class Observer:
    """Is called as runs are made. By default nothing happens: override what you want to know."""

    def jobs_started(self, todo: Sequence[Job], finished: Sequence[Job]) -> None:
        """These runs will be made; the others were finished earlier."""

    def downloading(self, what: str, done: int, total: int) -> None:
        """So many bytes of a file have arrived."""

    def run_started(self, job: Job) -> None:
        """A run begins, or is resumed."""

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        """A round was written down."""

    def run_finished(self, job: Job) -> None:
        """A run has come to its end."""

    def note(self, message: str) -> None:
        """Something to know that stops nothing."""


class Observers(Observer):
    """Several observers as one, called in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def jobs_started(self, todo: Sequence[Job], finished: Sequence[Job]) -> None:
        for observer in self._observers:
            observer.jobs_started(todo, finished)

    def downloading(self, what: str, done: int, total: int) -> None:
        for observer in self._observers:
            observer.downloading(what, done, total)

    def run_started(self, job: Job) -> None:
        for observer in self._observers:
            observer.run_started(job)

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        for observer in self._observers:
            observer.round_recorded(job, record)

    def run_finished(self, job: Job) -> None:
        for observer in self._observers:
            observer.run_finished(job)

    def note(self, message: str) -> None:
        for observer in self._observers:
            observer.note(message)
