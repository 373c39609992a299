"""What commands do with many runs: make them, read them back, report on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..catalog.options import ConfigError
from . import console

if TYPE_CHECKING:
    from ..report import Report
    from ..runs.execution import Execution
    from ..runs.many_runs import Job
    from ..runs.records import RunRecord
    from ..studies.study import Cell


@dataclass(frozen=True)
class Study:
    """Runs that are reported as one."""

    cells: Sequence[Cell]
    title: str
    what: str  # was asked for
    write: Callable[[Sequence[RunRecord], Path, str], Report]
    published: Callable[[RunRecord], RunRecord] | None = None  # what is kept of a run; None: every evaluation


def run_study(study: Study, folder: Path, place: Execution, *, draw: bool, publish: Path | None, as_json: bool) -> None:
    """Finish every run unless only a report is wanted, and write it: into the folder, or to where it is published."""
    from ..report import MissingReportExtra
    from ..runs.many_runs import Job
    from ..runs.packed_records import PACK, compact, write_pack
    from ..studies.study import read_runs_of

    if not draw:
        cells = [(cell, cell.experiment.folder(folder)) for cell in study.cells]
        finish([Job(cell.experiment, own, cell.label, cell.play) for cell, own in cells], place, folder)
    if place.worker:
        return
    runs = read_runs_of(study.cells, folder)
    if not runs:
        raise ConfigError(f"{folder} holds no run that belongs to {study.what}")
    if publish:
        runs = [(study.published or compact)(run) for run in runs if run.summary]
        write_pack(publish / PACK, runs)
    try:
        written = study.write(runs, publish or folder, study.title)
    except MissingReportExtra as missing:  # the tables need no library
        console.show_study(publish or folder, None, as_json)
        console.note(f"nothing was drawn, because {missing}")
        return
    console.show_study(publish or folder, written, as_json)


def finish(jobs: Sequence[Job], place: Execution, logs: Path) -> None:
    """Make the runs; Ctrl-C ends the command with a word of comfort."""
    from ..runs.many_runs import run_all

    try:
        run_all(jobs, place, logs)
    except KeyboardInterrupt:
        console.fail("interrupted; nothing is lost: the same command goes on where it stopped", 130)


def processes(jobs: str) -> int | None:
    """What --jobs says; None: as many as fit."""
    try:
        return None if jobs == "auto" else int(jobs)
    except ValueError as error:
        raise ConfigError(f"--jobs must be a number or auto, got {jobs!r}") from error
