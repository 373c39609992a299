"""What commands do with many runs: make them, read them back, report on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..catalog.options import ConfigError
from . import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ..report import Report
    from ..runs.execution import Execution
    from ..runs.experiment import Experiment
    from ..runs.many_runs import Job
    from ..runs.records import RunRecord


@dataclass(frozen=True)
class Study:
    """Runs that are reported as one."""

    planned: Sequence[Experiment]
    title: str
    what: str  # was asked for
    write: Callable[[Sequence[RunRecord], Path, str], Report]
    may_be_empty: bool = False  # there is something to report without any run
    published: Callable[[RunRecord], RunRecord] | None = None  # what is kept of a run; None: every evaluation


def run_study(study: Study, folder: Path, place: Execution, *, draw: bool, publish: Path | None, as_json: bool) -> None:
    """Finish every run unless only a report is wanted, and write it: into the folder, or to where it is published."""
    from ..report import MissingReportExtra
    from ..runs.many_runs import Job
    from ..runs.packed_records import PACK, compact, write_pack
    from ..studies.study import read_planned_runs, run_label

    if not draw:
        finish([Job(run, run.folder(folder), run_label(run)) for run in study.planned], place, folder)
    if place.worker:
        return
    runs = read_planned_runs(study.planned, folder)
    if not runs and not study.may_be_empty:
        raise ConfigError(f"{folder} holds no run that belongs to {study.what}")
    if publish:
        runs = [(study.published or compact)(run) for run in runs if run.summary]
        if runs:
            write_pack(publish / PACK, runs)
    try:
        written = study.write(runs, publish or folder, study.title)
    except MissingReportExtra as missing:  # the tables need no library
        console.show_study(publish or folder, None, as_json)
        console.note(f"nothing was drawn, because {missing}")
        return
    console.show_study(publish or folder, written, as_json)


def finish(jobs: Sequence[Job], place: Execution, logs: Path) -> None:
    """Make the runs; Ctrl-C ends the command with a hint how to resume."""
    from ..runs.many_runs import run_all

    with resume_hint():
        run_all(jobs, place, logs)


def finish_drift(planned: Sequence[Experiment], folder: Path, place: Execution) -> None:
    """Make the runs of the paper's figure 1, on this machine and one after the other."""
    from ..data import datasets
    from ..runs import provenance
    from ..runs.prepare import choose_device
    from ..studies.paper.drift import run_drift

    device, commit = choose_device(place.device), provenance.commit()
    notes = {"command": provenance.command()} | ({"commit": commit} if commit else {})
    with resume_hint(), console.progress_bars() as bars:
        for run in planned:
            bar = bars.add_task(f"figure 1 · seed {run.seeds[0]}", total=run.training.rounds, note="")
            dataset = datasets.load(run.data.dataset, place.data_dir, progress=console.download_progress(bars))
            update = partial(_update, bars, bar)
            update(
                len(
                    run_drift(run, run.folder(folder), dataset, device, notes=notes, on_measurement=update).measurements
                )
            )


def _update(bars: Progress, bar: TaskID, completed: int) -> None:
    bars.update(bar, completed=completed)


@contextmanager
def resume_hint() -> Iterator[None]:
    """Ctrl-C inside ends the command with a hint how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        console.fail("interrupted; nothing is lost: the same command resumes where it stopped", 130)


def processes(jobs: str) -> int | None:
    """What --jobs says; None: as many as fit."""
    try:
        return None if jobs == "auto" else int(jobs)
    except ValueError as error:
        raise ConfigError(f"--jobs must be a number or auto, got {jobs!r}") from error
