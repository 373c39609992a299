"""The results of a command: a table and where the report is, or the same as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ..runs.records import RunRecord
from .console import err, out, print_json, print_text

if TYPE_CHECKING:  # `--help` comes through here, and needs neither torch nor numpy
    from ..reinforcement import TrainingResult
    from ..report import Report


def show_trained(trained: TrainingResult, as_json: bool) -> None:
    """Show where the policy is, and whether its attack became stronger."""
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
    """Show the results: a table and remarks about it, or JSON for machines."""
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
    """Show where the report is."""
    if as_json:
        print_json(_paths(written))
        return
    for path in filter(None, (*written.figures, written.tables, written.page)):
        out.print(f"wrote {path}", soft_wrap=True)


def show_study(folder: Path, written: Report | None, as_json: bool) -> None:
    """Show the tables of many runs, and where the report is, if it could be drawn."""
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


COLUMNS = {
    "final_accuracy": "final accuracy, %",
    "tail_accuracy": "mean of last tenth, %",
    "attack_success": "attack success, %",
    "source_recall": "source recall, %",
    "clean_target_rate": "clean target rate, %",
    "adversarial_accuracy": "adversarial accuracy, %",
    "batch_statistics_accuracy": "accuracy with batch statistics, %",
    "malicious_rejected": "malicious rejected, %",
    "honest_rejected": "honest rejected, %",
    "most_rejected_honest": "most-rejected honest client, %",
    "worst_client_accuracy": "worst-served client, %",
}
OPTIONAL = (  # shown where something was measured
    "final_accuracy",
    "tail_accuracy",
    "attack_success",
    "source_recall",
    "clean_target_rate",
    "adversarial_accuracy",
    "batch_statistics_accuracy",
    "most_rejected_honest",
    "worst_client_accuracy",
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
    if "worst_client_accuracy" not in keys and "most_rejected_honest" in keys:
        keys.remove(
            "most_rejected_honest"
        )  # of one drawn client among many it says less than what it takes of the line
    for key in keys:
        table.add_column(COLUMNS[key], justify="right")
    metrics = list(dict.fromkeys(name for run in runs for name in _metrics_of(run)))
    if "final_accuracy" in keys:
        metrics = []  # a terminal has no room for more columns; the report has them
    for name in metrics:
        table.add_column(name, justify="right")
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.header["attack"], run.header["defense"]), []).append(run)
    for (attack, defense), group in groups.items():
        cells = [_spread([(run.summary or {}).get(key) for run in group]) for key in keys]
        cells += [_spread([_metrics_of(run).get(name) for run in group], 1, ".4g") for name in metrics]
        table.add_row(*([attack] if several_attacks else []), defense, *cells)
    return table


def _metrics_of(run: RunRecord) -> Mapping[str, float | None]:
    return (run.summary or {}).get("final_metrics") or {}


def _spread(values: list[float | None], factor: int = 100, form: str = ".1f") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    spread = f" ± {factor * statistics.stdev(known):{form}}" if len(known) > 1 else ""
    return f"{factor * statistics.mean(known):{form}}{spread}"
