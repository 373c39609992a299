"""Whoever wants to follow runs while they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .records import RoundRecord

if TYPE_CHECKING:
    from .experiment import Experiment


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
