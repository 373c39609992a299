"""The arena's runs by setting and defense: what each defense lost under each attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from ...catalog.registry import describe, get
from ...core import Need
from ...report.experiment_settings import read_setting
from ...report.groups import Group, group_runs
from ...runs.metrics import tail_quality
from ...runs.records import RunRecord

PREFIX = "arena-"  # how its experiments' names begin
DATASETS = {"digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}
ORACLES = {Need.ATTACKER_COUNT, Need.SERVER_DATA, Need.CLIENT_DATA}  # what a server does not know without help
NONE, BACKDOOR = "none", "backdoor"  # attacks that tables treat differently, by their names
INFORMED = ("adaptive", "tailored")  # those that know the defense
SURVIVAL = 0.5  # of the clean accuracy: with less, the model is destroyed, and whom a rule then rejects means nothing


@dataclass(frozen=True)
class DefenseResult:
    """A defense in one setting, and how it ended under each attack."""

    defense: str
    needs: frozenset[Need]
    groups: Mapping[str, Group]  # by attack
    clean: float | None  # the setting's

    @property
    def oracle(self) -> bool:
        return bool(self.needs & ORACLES)

    @cached_property
    def accuracies(self) -> dict[str, float]:
        """By attack, the mean accuracy over seeds in the last tenth of the rounds."""
        tails = {attack: list_tail_accuracies(group) for attack, group in self.groups.items()}
        return {attack: fmean(known) for attack, known in tails.items() if known}

    @cached_property
    def attacked(self) -> dict[str, float]:
        """The same under attacks that do not know the defense."""
        other = (NONE, *INFORMED)
        return {attack: end for attack, end in self.accuracies.items() if self._catalog_name(attack) not in other}

    @property
    def worst(self) -> tuple[str, float] | None:
        """The attack that cost most, and the accuracy that was left."""
        return min(self.attacked.items(), key=lambda pair: pair[1]) if self.attacked else None

    @property
    def mean(self) -> float | None:
        return fmean(self.attacked.values()) if self.attacked else None

    def lowest_under(self, *names: str) -> float | None:
        """The accuracy under the attack of that name in the catalog; the lowest where there are several such."""
        attacks = [attack for name in names for attack in self.attacks_named(name)]
        ends = [self.accuracies[attack] for attack in attacks if attack in self.accuracies]
        return min(ends, default=None)

    def lost(self, accuracy: float | None) -> float | None:
        """Points of accuracy below plain averaging without an attack, as they are shown; there is no negative zero."""
        return None if accuracy is None or self.clean is None else round(100 * (self.clean - accuracy), 1) + 0.0

    @property
    def survived(self) -> list[str]:
        """Of those attacks, the ones that did not destroy the model."""
        return [attack for attack, end in self.attacked.items() if self.clean and end > SURVIVAL * self.clean]

    def mean_of(self, key: str, attacks: Sequence[str]) -> float | None:
        """A number of the summaries: the mean over seeds, then over attacks."""
        by_attack = [[summary.get(key) for summary in self.groups[attack].summaries] for attack in attacks]
        known = [[value for value in values if value is not None] for values in by_attack]
        means = [fmean(values) for values in known if values]
        return fmean(means) if means else None

    def attacks_named(self, name: str) -> list[str]:
        """Attacks of that name in the catalog."""
        return [attack for attack in self.groups if self._catalog_name(attack) == name]

    @property
    def milliseconds(self) -> float | None:
        """Of the server's rule in a round: the median over all its runs, since other work may share the computer."""
        pairs = [pair for group in self.groups.values() for pair in zip(group.runs, group.summaries, strict=True)]
        known = [(summary.get("seconds", {}).get("defend"), run.n_rounds) for run, summary in pairs]
        by_run = [1000 * seconds / n_rounds for seconds, n_rounds in known if seconds is not None and n_rounds]
        return median(by_run) if by_run else None

    def _catalog_name(self, attack: str) -> str:
        return _read_attack_name(self.groups[attack])


@dataclass(frozen=True)
class Setting:
    """One dataset with one share of attackers."""

    name: str  # of the experiment, without the arena's prefix
    title: str
    clean: float | None  # accuracy of plain averaging without an attack; None: not run yet
    attacks: tuple[str, ...]  # in the order of the runs
    results: tuple[DefenseResult, ...]  # those without an oracle first; among equals the best worst case first

    def results_with(self, oracle: bool) -> list[DefenseResult]:
        return [result for result in self.results if result.oracle == oracle]


def list_settings(runs: Sequence[RunRecord]) -> list[Setting]:
    """Every setting that has runs; an error where there is none."""
    mine = [_without_schedule(run) for run in runs if run.experiment.startswith(PREFIX)]
    if not mine:
        names = ", ".join(sorted({run.experiment for run in runs})) or "no runs"
        raise ValueError(f"none of the runs belongs to an arena: {names}")
    settings = []
    for name in dict.fromkeys(run.experiment for run in mine):
        groups = group_runs([run for run in mine if run.experiment == name])
        variants = list(dict.fromkeys(group.setting for group in groups))  # one, unless something else was varied
        for number, variant in enumerate(variants):
            own = name.removeprefix(PREFIX) + (f"-variant-{number + 1}" if len(variants) > 1 else "")
            settings.append(_make_setting(own, variant, [group for group in groups if group.setting == variant]))
    return settings


def _without_schedule(run: RunRecord) -> RunRecord:
    """When an attack is active is a property of the attack here, and its label says so."""
    experiment = {key: value for key, value in run.header["experiment"].items() if key != "schedule"}
    return replace(run, header={**run.header, "experiment": experiment})


def list_tail_accuracies(group: Group) -> list[float]:
    """Accuracy, or R² of values, in the last tenth of the rounds, seed by seed. What is not a number counts as zero."""
    accuracies = []
    for run, summary in zip(group.runs, group.summaries, strict=True):
        tail = tail_quality(summary)
        if tail is not None:
            accuracies.append(tail if math.isfinite(tail) else 0.0)
        elif run.summary is not None:  # a finished run was evaluated, and JSON writes NaN as null
            accuracies.append(0.0)
    return accuracies


def _make_setting(name: str, variant: str, groups: Sequence[Group]) -> Setting:
    header = groups[0].runs[0].header
    source, share = (read_setting(header, "experiment", "data", key) for key in ("dataset", "malicious"))
    tails = [list_tail_accuracies(group) for group in groups if _is_clean(group)]
    clean = fmean(end for ends in tails for end in ends) if any(tails) else None
    dataset = source["name"] if isinstance(source, Mapping) else source
    title = ", ".join(filter(None, (f"{DATASETS.get(dataset, dataset)}, {100 * share:.3g}% attackers", variant)))
    results = []
    for defense in dict.fromkeys(group.defense for group in groups):
        own = {group.attack: group for group in groups if group.defense == defense}
        needs = next(iter(own.values())).runs[0].header["needs"]
        results.append(DefenseResult(defense, frozenset(map(Need, needs)), own, clean))
    attacks = tuple(dict.fromkeys(group.attack for group in groups))
    return Setting(name, title, clean, attacks, tuple(sorted(results, key=_rank)))


def _rank(result: DefenseResult) -> tuple[bool, float]:
    return result.oracle, -result.worst[1] if result.worst else math.inf


def _is_clean(group: Group) -> bool:
    """Plain averaging without an attack, by which all are measured."""
    defense = _read_part(group, "defenses")
    plain = {**describe(get("fedavg")), "buffers": defense.get("buffers")}
    return _read_attack_name(group) == NONE and defense == plain


def _read_attack_name(group: Group) -> str:
    """What the catalog calls its attack."""
    return str(_read_part(group, "attacks").get("name", ""))


def _read_part(group: Group, key: str) -> dict[str, Any]:
    """The attack or the defense as the header describes it."""
    entries: Sequence[Mapping[str, Any]] = read_setting(group.runs[0].header, "experiment", key)
    return {name: value for name, value in entries[0].items() if name != "label"}
