"""What a plan takes: how many runs and rounds, how many are done, and about how long the others take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ...attacks import Attack
from ...catalog.registry import get
from ...report.table import NOTHING, Table
from ...runs.data_section import load_dataset
from ...runs.device import choose_device
from ...runs.execution import Execution
from ...runs.experiment import Entry, Experiment
from ...runs.records import read_run
from ...runs.run_folder import is_finished
from ..advise.budget import measure_costs

TRIAL_SECONDS = 5.0  # after so long a trial is ended, once it has a round


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
    hours_left: float  # of one process
    measured: bool  # from finished runs in the same folder; otherwise from a few rounds without attack and defense


def forecast(planned: Sequence[Experiment], folder: Path, execution: Execution) -> list[Forecast]:
    """One per setting, in the order of the plan. Where no run of a setting is finished, a few rounds are timed."""
    by_name: dict[str, list[Experiment]] = defaultdict(list)
    for run in planned:
        by_name[run.name].append(run)
    return [_forecast_setting(name, runs, folder, execution) for name, runs in by_name.items()]


def make_forecast_table(forecasts: Sequence[Forecast]) -> Table:
    rows = [
        (
            one.name,
            *(str(number) for number in (one.n_attacks, one.n_defenses, one.n_seeds)),
            *(f"{number:,}" for number in (one.n_runs, one.n_rounds, one.n_finished)),
            _show_hours(one.hours_left, one.measured),
        )
        for one in forecasts
    ]
    total = [sum(getattr(one, key) for one in forecasts) for key in ("n_runs", "n_rounds", "n_finished")]
    hours, measured = sum(one.hours_left for one in forecasts), all(one.measured for one in forecasts)
    rows.append(("all", NOTHING, NOTHING, NOTHING, *(f"{n:,}" for n in total), _show_hours(hours, measured)))
    note = "Hours left: what one process takes, by the seconds of finished runs in the folder, first of those with the "
    note += "same attack. At least: no run of the setting is finished there yet, and a few rounds without attack and "
    note += "defense were timed; attacks that search take many times as long. Several processes on one GPU share it."
    headings = ("Setting", "Attacks", "Defenses", "Seeds", "Runs", "Rounds", "Finished", "Hours left")
    return Table("plan", "Planned runs", note, headings, tuple(rows))


def _forecast_setting(name: str, runs: Sequence[Experiment], folder: Path, execution: Execution) -> Forecast:
    done = [is_finished(run.folder(folder)) for run in runs]
    finished = [run for run, is_done in zip(runs, done, strict=True) if is_done]
    left = [run for run, is_done in zip(runs, done, strict=True) if not is_done]
    hours = _estimate_hours(left, finished, folder) if finished or not left else _time_rounds(left, execution)
    return Forecast(
        name,
        len({run.attacks[0].label for run in runs}),
        len({run.defenses[0].label for run in runs}),
        len({run.seeds for run in runs}),
        len(runs),
        sum(run.training.rounds for run in runs),
        len(finished),
        hours,
        bool(finished) or not left,
    )


def _estimate_hours(left: Sequence[Experiment], finished: Sequence[Experiment], folder: Path) -> float:
    """Attacks that search take a hundred times as long as others, so that runs under the same one say most."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for run in finished:
        summary = read_run(run.folder(folder)).summary or {}
        seconds[run.attacks[0].label].append(sum((summary.get("seconds") or {}).values()))
    means = {attack: fmean(known) for attack, known in seconds.items()}
    usual = fmean(means.values())
    return sum(means.get(run.attacks[0].label, usual) for run in left) / 3600


def _time_rounds(left: Sequence[Experiment], execution: Execution) -> float:
    """From a few rounds without attack and defense."""
    plain = replace(left[0], attacks=(Entry("none", Attack()),), defenses=(Entry("none", get("fedavg")),))
    costs = measure_costs(
        plain, load_dataset(plain, execution.data_dir), choose_device(execution.device), (), TRIAL_SECONDS
    )
    rounds, evaluations = (sum(count(run) for run in left) for count in (_count_rounds, _count_evaluations))
    return (len(left) * costs.start + rounds * costs.round + evaluations * costs.evaluation) / 3600


def _count_rounds(run: Experiment) -> int:
    return run.training.rounds


def _count_evaluations(run: Experiment) -> int:
    return run.training.rounds // run.training.evaluate_every


def _show_hours(hours: float, measured: bool) -> str:
    return f"{hours:.3g}" if measured else f"at least {hours:.3g}"
