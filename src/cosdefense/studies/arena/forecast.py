"""What a plan takes: how many runs and rounds, how many are done, and about how long the others take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ...report.table import NOTHING, Table
from ...runs.experiment import Experiment
from ...runs.records import read_run
from ...runs.run_folder import is_finished


@dataclass(frozen=True)
class Forecast:
    """The runs of one setting."""

    name: str
    n_attacks: int
    n_defenses: int
    n_seeds: int
    n_runs: int
    n_rounds: int  # of all runs
    n_finished: int
    hours_left: float | None  # of one process, from finished runs in the same folder; None: there are none


def forecast(planned: Sequence[Experiment], folder: Path) -> list[Forecast]:
    """One per setting, in the order of the plan."""
    by_name: dict[str, list[Experiment]] = defaultdict(list)
    for run in planned:
        by_name[run.name].append(run)
    return [_forecast_setting(name, runs, folder) for name, runs in by_name.items()]


def make_forecast_table(forecasts: Sequence[Forecast]) -> Table:
    rows = [
        (
            one.name,
            *(str(number) for number in (one.n_attacks, one.n_defenses, one.n_seeds)),
            *(f"{number:,}" for number in (one.n_runs, one.n_rounds, one.n_finished)),
            _show_hours(one.hours_left),
        )
        for one in forecasts
    ]
    total = [sum(getattr(one, key) for one in forecasts) for key in ("n_runs", "n_rounds", "n_finished")]
    known = [one.hours_left for one in forecasts if one.hours_left is not None]
    whole = sum(known) if len(known) == len(forecasts) else None
    rows.append(("all", NOTHING, NOTHING, NOTHING, *(f"{number:,}" for number in total), _show_hours(whole)))
    note = "Hours left: what one process takes, by the seconds of finished runs in the folder, first of those with the "
    note += f"same attack. {NOTHING}: no run of the setting is finished there yet, so run a few with --attacks and "
    note += "--defenses. Several processes on one GPU share it."
    headings = ("Setting", "Attacks", "Defenses", "Seeds", "Runs", "Rounds", "Finished", "Hours left")
    return Table("plan", "Planned runs", note, headings, tuple(rows))


def _forecast_setting(name: str, runs: Sequence[Experiment], folder: Path) -> Forecast:
    finished = [run for run in runs if is_finished(run.folder(folder))]
    open_runs = [run for run in runs if run not in finished]
    return Forecast(
        name,
        len({run.attacks[0].label for run in runs}),
        len({run.defenses[0].label for run in runs}),
        len({run.seeds for run in runs}),
        len(runs),
        sum(run.training.rounds for run in runs),
        len(finished),
        _estimate_hours(open_runs, finished, folder),
    )


def _estimate_hours(open_runs: Sequence[Experiment], finished: Sequence[Experiment], folder: Path) -> float | None:
    """Attacks that search take a hundred times as long as others, so that runs under the same one say most."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for run in finished:
        summary = read_run(run.folder(folder)).summary or {}
        seconds[run.attacks[0].label].append(sum((summary.get("seconds") or {}).values()))
    if not seconds:
        return None
    means = {attack: fmean(known) for attack, known in seconds.items()}
    usual = fmean(means.values())
    return sum(means.get(run.attacks[0].label, usual) for run in open_runs) / 3600


def _show_hours(hours: float | None) -> str:
    return NOTHING if hours is None else f"{hours:.3g}"
