"""Make the runs of a command, and show them while they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import console
from .progress import RunDisplay, progress_bars

if TYPE_CHECKING:
    from ..runs.execution import Execution
    from ..runs.experiment import Experiment
    from ..runs.observer import Job
    from ..runs.records import RunRecord
    from ..tracking.tracked_runs import MakeTracker


def execute(
    jobs: Sequence[Job],
    execution: Execution,
    logs: Path,
    trackers: Sequence[MakeTracker] = (),
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Finish every job. Ctrl-C ends the command with a hint how to resume. `notes` go into the header of every run."""
    from ..runs import provenance
    from ..runs.many_runs import run_all
    from ..runs.memory import keep_freed_memory
    from ..runs.observer import Observers
    from ..tracking.tracked_runs import TrackedRuns

    keep_freed_memory()
    every = {**provenance.notes(), **(notes or {})}
    with closing(TrackedRuns(trackers)) as tracked, resume_hint(), progress_bars() as bars:
        run_all(jobs, execution, Observers(RunDisplay(bars), tracked), notes=every, logs=logs)


@contextmanager
def resume_hint() -> Iterator[None]:
    """Ctrl-C inside ends the command with a hint how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        console.fail("interrupted; every run is saved: the same command resumes", 130)


def execute_experiment(
    experiment: Experiment, out: Path, execution: Execution, track: Sequence[str] = ()
) -> list[RunRecord]:
    """Finish every run of a grid, and read the results."""
    from ..core.experiment_folder import reading_from
    from ..runs.observer import Job
    from ..runs.records import read_run
    from ..tracking.tracked_runs import choose_trackers

    folder = out / experiment.name
    with reading_from(experiment.source):
        trackers = choose_trackers(list(dict.fromkeys((*experiment.track, *track))), folder)
    jobs = [Job(cell, cell.folder(out), _label(cell, experiment)) for cell in experiment.cells()]
    execute(jobs, execution, folder, trackers)
    return [read_run(job.folder) for job in jobs]


def _label(cell: Experiment, experiment: Experiment) -> str:
    """The defense, and whatever else varies."""
    (attack,), (defense,), (seed,) = cell.attacks, cell.defenses, cell.seeds
    attacks = [attack.label] if len(experiment.attacks) > 1 else []
    seeds = [f"seed {seed}"] if len(experiment.seeds) > 1 else []
    return " · ".join((defense.label, *attacks, *seeds))
