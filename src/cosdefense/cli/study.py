"""What a command does with a study: make its runs, read them back, report on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalog.extras import MissingExtra
from ..catalog.options import ConfigError
from . import console, results
from .execute import execute

if TYPE_CHECKING:
    from ..report import Report
    from ..runs.execution import Execution
    from ..runs.experiment import Experiment
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
    notes: Mapping[str, Any] = field(default_factory=dict)  # for the header of every run


def run_study(
    study: Study, folder: Path, execution: Execution, *, draw: bool, publish: Path | None, as_json: bool
) -> None:
    """Finish every run unless only a report is wanted, and write it: into the folder, or to where it is published."""
    from ..runs.observer import Job
    from ..runs.packed_records import PACK, compact, write_pack
    from ..studies.study import read_planned_runs, run_label

    if not draw:
        jobs = [Job(run, run.folder(folder), run_label(run)) for run in study.planned]
        execute(jobs, execution, folder, notes=study.notes)
    runs = read_planned_runs(study.planned, folder)
    if not runs and not study.may_be_empty:
        raise ConfigError(f"{folder} holds no run that belongs to {study.what}")
    if publish:
        runs = [(study.published or compact)(run) for run in runs if run.summary]
        if runs:
            write_pack(publish / PACK, runs)
    try:
        written = study.write(runs, publish or folder, study.title)
    except MissingExtra as missing:  # the tables need no library
        results.show_study(publish or folder, None, as_json)
        console.note(f"nothing was drawn, because {missing}")
        return
    results.show_study(publish or folder, written, as_json)
