"""What a person sees while a command works: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..runs.observer import Job, Observer
from ..runs.records import RoundRecord
from . import console
from .console import err

MANY = 8  # runs that were finished earlier are named one by one up to this number


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Bars on a terminal; off it, nothing moves."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as bars:
        yield bars


class RunDisplay(Observer):
    """Shows runs as they are made."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._overall: TaskID | None = None
        self._runs: dict[Path, RunProgress] = {}
        self._downloads = DownloadProgress(bars)

    def jobs_started(self, todo: Sequence[Job], finished: Sequence[Job]) -> None:
        if len(finished) > MANY:
            folder = finished[0].folder.parent
            err.print(f"{len(finished)} runs were finished earlier, see {folder}", soft_wrap=True)
        else:
            for job in finished:
                err.print(f"{job.label}: finished earlier, see {job.folder}", soft_wrap=True)
        if len(todo) > 1:
            self._overall = self._bars.add_task("runs", total=len(todo), note="")

    def downloading(self, what: str, done: int, total: int) -> None:
        self._downloads(what, done, total)

    def run_started(self, job: Job) -> None:
        if job.folder not in self._runs:  # a run on a cluster may be started again
            self._runs[job.folder] = RunProgress(self._bars, job.label, job.cell.training.rounds)

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        self._runs[job.folder].show(record)

    def run_finished(self, job: Job) -> None:
        if job.folder in self._runs:
            self._runs[job.folder].finish()
        if self._overall is not None:
            self._bars.advance(self._overall)

    def note(self, message: str) -> None:
        console.note(message)


class RunProgress:
    """One run: a bar with the accuracy on a terminal, five lines elsewhere."""

    def __init__(self, bars: Progress, label: str, rounds: int) -> None:
        self._bars, self._label, self._rounds = bars, label, rounds
        self._bar = bars.add_task(label, total=rounds, note="")
        self._accuracy = ""

    def show(self, record: RoundRecord) -> None:
        n_done = record.round + 1
        if record.accuracy is not None:
            self._accuracy = f"accuracy {100 * record.accuracy:.1f} %"
        elif record.loss is not None:
            self._accuracy = f"loss {record.loss:.4g}"
        self._bars.update(self._bar, completed=n_done, note=self._accuracy)
        if not err.is_terminal and n_done % max(1, self._rounds // 5) == 0:
            state = self._accuracy or "not yet evaluated"
            err.print(f"{self._label}: round {n_done} of {self._rounds}, {state}", soft_wrap=True)

    def finish(self) -> None:
        self._bars.update(self._bar, completed=self._rounds)


class DownloadProgress:
    """Is called with a description, the bytes that have arrived, and how many there are."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, description: str, done: int, total: int) -> None:
        if description not in self._tasks:
            self._tasks[description] = self._bars.add_task(description, total=total, note="")
            if not err.is_terminal:
                err.print(f"{description} …", soft_wrap=True)
        self._bars.update(self._tasks[description], completed=done, total=total)


def training_progress(bars: Progress, total: int) -> Any:
    """A `progress(done, loss)` callback for the training of an attack; off a terminal a line now and then."""
    bar, every = bars.add_task("decisions", total=total, note=""), max(1, total // 5)

    def report(done: int, loss: float | None) -> None:
        note = "" if loss is None else f"mean loss of the last episode {loss:.2f}"
        bars.update(bar, completed=done, note=note)
        if not err.is_terminal and done % every == 0:
            err.print(f"decision {done} of {total}{note and ', '}{note}", soft_wrap=True)

    return report
