"""cosdefense advise: which defense fits a federation."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from ..runs.execution import Execution
from ..runs.observer import Job, Observer
from ..runs.records import RoundRecord
from . import console
from .execute import resume_hint
from .options import Changes, DataDir, Device, Json, Out
from .progress import DownloadProgress, progress_bars

if TYPE_CHECKING:
    from ..studies.advise.tournament import Tournament

EPILOG = "Example: cosdefense advise examples/own-data/hospitals.toml --minutes 2"


def advise(
    file: Annotated[Path, typer.Argument(help="An experiment as TOML: your data, model, clients and training.")],
    minutes: Annotated[float, typer.Option(help="How long it may take.")] = 10.0,
    metric: Annotated[
        str | None,
        typer.Option(help="By which to judge; default: the first of training.metrics, or accuracy, or R² of values."),
    ] = None,
    changes: Changes = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Recommend a defense, from a small tournament on your own model, data and clients.

    A round is timed first. Then as many defenses, attacks, rounds and seeds as fit into the time are planned; those
    that the file names come first. The plan is written beside the file, as an experiment that reproduces each number.
    When the time is over, the same command continues where it stopped.
    """
    start = time.monotonic()
    from ..studies.advise.advice import to_json, write_advice
    from ..studies.advise.choice import choose
    from ..studies.advise.measured import collect_outcomes
    from ..studies.advise.tournament import prepare
    from ..studies.study import read_planned_runs

    tournament = prepare(file, minutes, changes or (), device, data_dir, metric)
    for note in tournament.notes:
        console.note(note)
    jobs = tournament.list_jobs(out)
    _make_runs(tournament, jobs, Execution(device, data_dir), start + 60 * minutes, out)
    runs = [run for run in read_planned_runs([job.cell for job in jobs], out) if run.summary]
    if len(runs) < len(jobs):
        console.note(f"{len(runs)} of {len(jobs)} runs were finished in the time: the same command makes the others")
    outcomes = collect_outcomes(runs, tournament.metric, tournament.constant)
    if len(outcomes) < 2:
        console.fail("not even one defense met all attacks in the time: the same command continues", 1)
    choice = choose(outcomes)
    if as_json:
        advice = to_json(choice, outcomes, tournament)
        console.print_json({**advice, "experiment": str(tournament.file), "finished": len(runs), "planned": len(jobs)})
        return
    console.print_text(write_advice(choice, outcomes, tournament))
    words = ["cosdefense", "run", str(tournament.file)]
    words += [] if out == Path("runs") else ["--out", str(out)]
    words += [] if data_dir is None else ["--data-dir", str(data_dir)]
    console.print_text(f"\nEvery number: {shlex.join(words)}\n")


def _make_runs(tournament: Tournament, jobs: Sequence[Job], execution: Execution, end: float, out: Path) -> None:
    """Finish as many runs as the time allows."""
    from ..runs import provenance
    from ..runs.many_runs import run_all
    from ..runs.memory import keep_freed_memory
    from ..runs.observer import Observers
    from ..studies.advise.tournament import Deadline, TimeIsUp

    keep_freed_memory()
    with resume_hint(), progress_bars() as bars:
        observers = Observers(TournamentDisplay(bars), Deadline(end))
        try:
            run_all(jobs, execution, observers, notes=provenance.notes(), logs=out / tournament.experiment.name)
        except TimeIsUp:
            console.note("the time is up")


class TournamentDisplay(Observer):
    """One bar for all rounds; off a terminal, a line for every tenth of the runs."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._downloads = DownloadProgress(bars)
        self._n_runs = self._n_finished = 0
        self._n_rounds = dict[Path, int]()  # that are done, of every run

    def jobs_started(self, todo: Sequence[Job], finished: Sequence[Job]) -> None:
        self._n_runs, self._n_finished = len(todo) + len(finished), len(finished)
        self._n_rounds = {job.folder: job.cell.training.rounds for job in finished}
        total = sum(job.cell.training.rounds for job in (*todo, *finished))
        self._bar = self._bars.add_task("rounds", total=total, completed=sum(self._n_rounds.values()), note="")

    def downloading(self, what: str, done: int, total: int) -> None:
        self._downloads(what, done, total)

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        self._n_rounds[job.folder] = record.round + 1  # a resumed run begins with a later one
        self._bars.update(self._bar, completed=sum(self._n_rounds.values()), note=job.label)

    def run_finished(self, job: Job) -> None:
        self._n_finished += 1
        if not console.err.is_terminal and self._n_finished % max(1, self._n_runs // 10) == 0:
            console.err.print(f"{self._n_finished} of {self._n_runs} runs, last: {job.label}", soft_wrap=True)

    def note(self, message: str) -> None:
        console.note(message)
