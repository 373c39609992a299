"""Tuning: every rule gets the same small number of settings to try, and keeps the one with the best worst case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...catalog.options import ConfigError, unknown_name_error
from ...report.table import NOTHING, Table
from ...runs.experiment import Experiment
from ...runs.experiment_file import entry_names
from ...runs.records import RunRecord
from .defense_results import SURVIVAL, DefenseResult, list_settings
from .frozen import read_code
from .plan import Choice, Plan, check_fields, find_field, name_setting, plan_table, read_field
from .seeds import DESIGN, find_seed_set, show_seeds
from .tuned import Chosen, Tried, Tuned, TunedRule, read_grid, scale_options, show_options

PREFIX = "arena-tuning"  # how its experiments' names begin
SEPARATOR = ": "  # between the label of a rule and its options


@dataclass(frozen=True)
class TuningPlan:
    """The runs that settings are compared by."""

    plan: Plan
    rules: tuple[TunedRule, ...]

    def choose(self, runs: Sequence[RunRecord]) -> Tuned:
        """What is chosen from finished runs. A rule that lacks some is left as it is."""
        finished = [run for run in runs if run.summary]
        if not finished:
            raise ConfigError("nothing can be chosen: no run is finished")
        results = _read_results(finished)
        expected = _count_runs(self.plan.runs)
        chosen = []
        for rule in self.rules:
            labels = [label_setting(rule, setting) for setting in rule.settings]
            complete = all(label in results and results[label].n_runs == expected[label] for label in labels)
            if complete:
                chosen.append(_choose(rule, [results[label] for label in labels]))
        return Tuned(_describe_source(self.plan.runs, finished), tuple(chosen))


def plan_tuning(dataset: str, share: float, choice: Choice) -> TuningPlan:
    """The runs of every setting of the chosen rules, on one field; and plain averaging, by which all are measured."""
    check_fields([dataset], [share])
    for seed in choice.seeds:
        if find_seed_set(seed) != DESIGN:
            raise ConfigError(f"--tune takes design seeds, 0 to 4, got {seed}")
    attacks, every = read_grid()
    rules = _select_rules(every, choice.defenses)
    table = read_field(dataset, replace(choice, tuned=None))
    rate = float(table["training"]["lr"])
    settings = [
        {"label": label_setting(rule, setting), **scale_options(setting, rule.times_lr, rate)}
        for rule in rules
        for setting in rule.settings
    ]
    plain = [entry for entry in table["defenses"] if entry.get("name") == "fedavg"]
    table |= {"name": name_setting(dataset, share, PREFIX), "defenses": [*plain, *settings]}
    wanted = replace(choice, attacks=choice.attacks or attacks, defenses=None)
    runs, absent = plan_table(table, find_field(dataset).parent, share, wanted)
    left_out = tuple(f"{label} is left out: {why}" for label, why in absent.items())
    return TuningPlan(Plan(tuple(runs), left_out), rules)


def label_setting(rule: TunedRule, setting: Mapping[str, Any]) -> str:
    return f"{rule.label}{SEPARATOR}{show_options(setting, rule.times_lr)}"


def make_tuning_table(tuned: Tuned) -> Table:
    """All settings that were tried, the chosen one of each rule first."""
    rows = tuple(
        (
            one.label,
            tried.options,
            "chosen" if number == 0 else NOTHING,
            tried.worst_attack,
            f"{tried.worst_accuracy:.1%}",
            f"{tried.mean_accuracy:.1%}",
        )
        for one in tuned.chosen
        for number, tried in enumerate(one.tried)
    )
    source = tuned.source
    note = f"Field {source['field']}, {100 * source['attackers']:.3g}% attackers, {source['rounds']} rounds, seeds "
    note += f"{show_seeds(source['seeds'])}, code {source['code']}. Accuracy is the mean over the last tenth of the "
    note += "rounds and over seeds. The worst case is over these attacks: "
    note += f"{', '.join(source['attacks'])}. The best worst case is chosen; among equals the best mean, then the "
    note += f"first of the grid. Worst cases below {SURVIVAL:.0%} of the accuracy of plain averaging without an attack "
    note += "count as equal: whether a destroyed model is right in 10 or 11 % of the cases is chance."
    headings = ("Defense", "Options", "Chosen", "Worst attack", "Accuracy, worst case", "Accuracy, mean over attacks")
    return Table("tuning", "Settings that were tried", note, headings, rows, n_words=4, parts=True)


def _select_rules(rules: Sequence[TunedRule], wanted: Sequence[str] | None) -> tuple[TunedRule, ...]:
    names = {rule.label: {rule.label.casefold(), *_names_of(rule)} for rule in rules}
    for name in wanted or ():
        if not any(name.casefold() in known for known in names.values()):
            raise unknown_name_error("tunable defense", name, names)
    folded = None if wanted is None else {name.casefold() for name in wanted}
    return tuple(rule for rule in rules if folded is None or folded & names[rule.label])


def _names_of(rule: TunedRule) -> set[str]:
    return {name.casefold() for setting in rule.settings for name in entry_names({"label": rule.label, **setting})}


def _read_results(runs: Sequence[RunRecord]) -> dict[str, DefenseResult]:
    (setting,) = list_settings(runs)
    return {result.defense: result for result in setting.results}


def _count_runs(planned: Sequence[Experiment]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for run in planned:
        counts[run.defenses[0].label] += 1
    return counts


def _choose(rule: TunedRule, results: Sequence[DefenseResult]) -> Chosen:
    """The best worst case. Destroyed models are all the same: below half of the clean accuracy the mean decides."""
    tried = [_make_tried(rule, setting, result) for setting, result in zip(rule.settings, results, strict=True)]
    limit = SURVIVAL * (results[0].clean or 0.0)
    worst = [one.worst_accuracy if one.worst_accuracy > limit else 0.0 for one in tried]
    order = sorted(range(len(tried)), key=lambda i: (-worst[i], -tried[i].mean_accuracy, i))
    return Chosen(rule.label, rule.settings[order[0]], rule.times_lr, tuple(tried[i] for i in order))


def _make_tried(rule: TunedRule, setting: Mapping[str, Any], result: DefenseResult) -> Tried:
    if result.worst is None or result.mean is None:
        raise ConfigError("--tune needs at least one attack beside none")
    return Tried(show_options(setting, rule.times_lr), *result.worst, result.mean)


def _describe_source(planned: Sequence[Experiment], runs: Sequence[RunRecord]) -> dict[str, Any]:
    first = planned[0]
    codes = sorted({read_code(run.header) for run in runs})
    return {
        "field": first.name.removeprefix(f"{PREFIX}-").rpartition("-")[0],
        "attackers": first.data.malicious,
        "rounds": first.training.rounds,
        "seeds": sorted({run.seeds[0] for run in planned}),
        "attacks": list(dict.fromkeys(run.attacks[0].label for run in planned if run.attacks[0].label != "none")),
        "code": ", ".join(codes),
    }


def write_tuned(path: Path, tuned: Tuned) -> None:
    """Write the file that the arena reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# Written by cosdefense arena --tune.\n" + tuned.to_toml(), encoding="utf-8")
