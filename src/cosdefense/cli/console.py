"""What a person sees while runs go on, and the results at the end; for machines the same as JSON."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ..runs.records import RoundRecord, RunRecord

if TYPE_CHECKING:  # `--help` comes through here, and needs neither torch nor numpy
    from ..reinforcement import TrainingResult
    from ..report import Report

# No markup: labels, paths and messages are other people's text, and may hold brackets.
out = Console(highlight=False, markup=False)  # results
err = Console(stderr=True, highlight=False, markup=False)  # progress, notes and errors


def fail(message: str, code: int) -> NoReturn:
    """The end of a command that could not do what was asked."""
    err.print(f"error: {message}", style="red", soft_wrap=True)
    sys.exit(code)


def note(message: str) -> None:
    """Something to know that stops nothing."""
    err.print(f"note: {message}", style="yellow", soft_wrap=True)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


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


class RunProgress:
    """Shows a run as it goes: a bar with the accuracy on a terminal, a line now and then elsewhere."""

    def __init__(self, bars: Progress, label: str, rounds: int) -> None:
        self._bars, self._label, self._rounds = bars, label, rounds
        self._bar: TaskID | None = None  # from the first round on
        self._note = ""

    def __call__(self, record: RoundRecord) -> None:
        if record.accuracy is not None:
            self._note = f"accuracy {percent(record.accuracy)}"
        self._update(record.round + 1)
        if not err.is_terminal and (record.round + 1) % max(1, self._rounds // 5) == 0:
            said = f"round {record.round + 1} of {self._rounds}, {self._note or 'not yet evaluated'}"
            err.print(f"{self._label}: {said}", soft_wrap=True)

    def finish(self) -> None:
        self._update(self._rounds)

    def _update(self, completed: int) -> None:
        if self._bar is None:
            self._bar = self._bars.add_task(self._label, total=self._rounds, note="")
        self._bars.update(self._bar, completed=completed, note=self._note)


def follow(bars: Progress, label: str, rounds: int, records: Iterable[RoundRecord]) -> None:
    """Show a run from now until it ends."""
    show = RunProgress(bars, label, rounds)
    for record in records:
        show(record)
    show.finish()


def download_progress(bars: Progress) -> Any:
    """A `progress(description, done, total)` callback that draws on these bars."""
    tasks: dict[str, Any] = {}

    def report(description: str, done: int, total: int) -> None:
        if description not in tasks:
            tasks[description] = bars.add_task(description, total=total, note="")
            if not err.is_terminal:
                err.print(f"{description} …", soft_wrap=True)
        bars.update(tasks[description], completed=done, total=total)

    return report


def training_progress(bars: Progress, total: int) -> Any:
    """A `progress(done, loss)` callback for the training of an attack; off a terminal a line now and then."""
    bar, every = bars.add_task("decisions", total=total, note=""), max(1, total // 5)

    def report(done: int, loss: float | None) -> None:
        note = "" if loss is None else f"mean loss of the last episode {loss:.2f}"
        bars.update(bar, completed=done, note=note)
        if not err.is_terminal and done % every == 0:
            err.print(f"decision {done} of {total}{note and ', '}{note}", soft_wrap=True)

    return report


def show_trained(trained: TrainingResult, as_json: bool) -> None:
    """Where the policy lies, and whether it got better at what it does."""
    if as_json:
        print_json({"policy": str(trained.path), "decisions": trained.steps, "losses": trained.losses})
        return
    out.print(f"wrote {trained.path} after {trained.steps} decisions", soft_wrap=True)
    fifth = len(trained.losses) // 5
    if fifth:
        first, last = statistics.mean(trained.losses[:fifth]), statistics.mean(trained.losses[-fifth:])
        what = "mean loss of the global model on the attackers' data"
        out.print(f"{what}: {first:.2f} in the first fifth of the episodes, {last:.2f} in the last", soft_wrap=True)


def show_runs(runs: list[RunRecord], as_json: bool, written: Report | None = None) -> None:
    """The results: a table and what there is to say about it, or JSON for machines."""
    if as_json:
        rows = [
            {key: run.header[key] for key in ("attack", "defense", "seed")} | {"summary": run.summary} for run in runs
        ]
        print_json({"runs": rows} | (_paths(written) if written else {}))
        return
    out.print(results_table(runs))
    for run in runs:
        if run.summary and run.summary["skipped_rounds"]:
            reasons = "; ".join(sorted({record.skipped for record in run.rounds if record.skipped}))
            which = f"{run.label} under {run.header['attack']}, seed {run.header['seed']}"
            count = f"{run.summary['skipped_rounds']} of {run.n_rounds} rounds left the model as it was"
            err.print(f"{which}: {count}{f' ({reasons})' if reasons else ''}", soft_wrap=True)
    if written:
        show_report(written, as_json)


def show_report(written: Report, as_json: bool) -> None:
    """Where the report lies."""
    if as_json:
        print_json(_paths(written))
        return
    for path in filter(None, (*written.figures, written.tables, written.page)):
        out.print(f"wrote {path}", soft_wrap=True)


def show_study(folder: Path, written: Report | None, as_json: bool) -> None:
    """The tables of many runs, and where the report lies, if it could be drawn."""
    tables = folder / "tables.md"
    if as_json:
        print_json({"tables": str(tables)} | (_paths(written) if written else {}))
        return
    print_text(tables.read_text(encoding="utf-8"))
    if written:
        show_report(written, as_json)


def _paths(written: Report) -> dict[str, Any]:
    tables = {"tables": str(written.tables)} if written.tables else {}
    return {"page": str(written.page), "figures": [str(path) for path in written.figures]} | tables


def print_json(content: object) -> None:
    print_text(json.dumps(content) + "\n")


def print_text(text: str) -> None:
    print(text, end="")  # noqa: T201 (rich would wrap it)


COLUMNS = {
    "final_accuracy": "final accuracy, %",
    "tail_accuracy": "mean of last tenth, %",
    "attack_success": "attack success, %",
    "source_recall": "source recall, %",
    "adversarial_accuracy": "adversarial accuracy, %",
    "batch_statistics_accuracy": "accuracy with batch statistics, %",
    "malicious_rejected": "malicious rejected, %",
    "honest_rejected": "honest rejected, %",
}
OPTIONAL = (  # shown where something was measured
    "attack_success",
    "source_recall",
    "adversarial_accuracy",
    "batch_statistics_accuracy",
)


def results_table(runs: Sequence[RunRecord]) -> Table:
    """One row per attack and defense, over its seeds."""
    several_attacks = len({run.header["attack"] for run in runs}) > 1
    n_seeds = len({run.header["seed"] for run in runs})
    table = Table(caption=f"mean ± standard deviation over {n_seeds} seeds" if n_seeds > 1 else None)
    if several_attacks:
        table.add_column("attack")
    short = max(len(run.header["defense"]) for run in runs) <= 20  # only then may a name squeeze the numbers
    table.add_column("defense", no_wrap=short)
    keys = [
        key for key in COLUMNS if key not in OPTIONAL or any((run.summary or {}).get(key) is not None for run in runs)
    ]
    for key in keys:
        table.add_column(COLUMNS[key], justify="right")
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.header["attack"], run.header["defense"]), []).append(run)
    for (attack, defense), group in groups.items():
        cells = [_spread([(run.summary or {}).get(key) for run in group]) for key in keys]
        table.add_row(*([attack] if several_attacks else []), defense, *cells)
    return table


def _spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    spread = f" ± {100 * statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{100 * statistics.mean(known):.1f}{spread}"
