"""The paper's experiments among the runs: which is which, and what the paper found.

Yaldiz, Zhang, Avestimehr. Secure Federated Learning against Model Poisoning Attacks via Client Filtering. 2023.
https://arxiv.org/abs/2304.00160
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...report.experiment_settings import read_setting
from ...report.groups import Group, group_runs
from ...runs.records import RunRecord
from .drift import DriftRun

MAIN = {"paper-mnist": "MNIST", "paper-fashion-mnist": "Fashion-MNIST", "paper-cifar-10": "CIFAR-10"}
COUNTERS = "paper-cifar-10-counters"  # on CIFAR-10, the norm that is clipped counts BatchNorm's counters too
ATTACKERS, SKEW, SCORES = "paper-attackers-", "paper-skew-", "paper-scores"
LAYERS, AGGREGATORS, BACKDOORS = "paper-layers", "paper-aggregators", "paper-backdoors"  # claims without a figure
ROUNDS = 1000  # of every run in the paper

COUNTED = "Clipping-Median (counters)"  # how that one is called beside the others
DEFENSES = ("none", "Krum", "Krum (its paper)", "Clipping-Median", COUNTED, "CosDefense")
PRINTED = {  # table 3: final accuracy under attack, as printed
    "MNIST": {"none": "9.8%", "Krum": "9.8%", "Clipping-Median": "19.29%", "CosDefense": "83.37%"},
    "Fashion-MNIST": {"none": "10%", "Krum": "10%", "Clipping-Median": "21.24%", "CosDefense": "67.63%"},
    "CIFAR-10": {"none": "10%", "Krum": "10%", "Clipping-Median": "20.89%", "CosDefense": "52.02%"},
}


@dataclass(frozen=True)
class View:
    """The groups of one dataset under one way of testing."""

    dataset: str  # with the settings that distinguish it from others of the same name
    groups: tuple[Group, ...]
    test: str = ""  # how BatchNorm was tested, where that was done in two ways
    key: str = "accuracy"  # of a round
    final: str = "final_accuracy"  # of a summary
    tail: str = "tail_accuracy"

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.test}" if self.test else self.dataset

    def printed(self, group: Group) -> str | None:
        """What the paper has for it."""
        return PRINTED.get(self.dataset.split(",")[0], {}).get(group.defense)


@dataclass(frozen=True)
class Paper:
    """The runs that repeat the paper."""

    runs: tuple[RunRecord, ...]
    drift: tuple[DriftRun, ...] = ()  # of figure 1

    @cached_property
    def attacked(self) -> list[Group]:
        """The runs of table 3."""
        return [group for group in self._main if group.attack != "none"]

    @cached_property
    def clean(self) -> list[Group]:
        """The same without any attack."""
        return [group for group in self._main if group.attack == "none"]

    @cached_property
    def _main(self) -> list[Group]:
        groups = []
        for name, dataset in MAIN.items():
            mine = self.of(name)
            if name == "paper-cifar-10":
                mine += [replace(group, defense=COUNTED) for group in self.of(COUNTERS)]
            named = [replace(group, setting=", ".join(filter(None, (dataset, group.setting)))) for group in mine]
            groups += sorted(named, key=_rank)
        return groups

    @cached_property
    def scores(self) -> list[Group]:
        """Figure 2: without and with the attack."""
        return sorted(self.of(SCORES), key=lambda group: (group.setting, group.attack != "none"))

    @cached_property
    def attackers(self) -> list[tuple[float, Group]]:
        """Figure 4, by the share of malicious clients."""
        return self._groups_by(ATTACKERS, "data", "malicious")

    @cached_property
    def skew(self) -> list[tuple[float, Group]]:
        """Figure 6, by how much the clients' data differ."""
        return self._groups_by(SKEW, "data", "partition", "q")

    @cached_property
    def layers(self) -> list[Group]:
        """CosDefense by the layer that it compares."""
        return self.of(LAYERS)

    @cached_property
    def aggregators(self) -> list[Group]:
        """Ways to combine updates, alone and behind CosDefense."""
        return self.of(AGGREGATORS)

    @cached_property
    def backdoors(self) -> list[Group]:
        """Targeted attacks."""
        return self.of(BACKDOORS)

    def of(self, name: str) -> list[Group]:
        """The groups of one experiment; their setting is empty unless it was run in several ways."""
        return group_runs([run for run in self.runs if run.experiment == name])

    def _groups_by(self, prefix: str, *path: str) -> list[tuple[float, Group]]:
        """Groups by the value of a setting; that of table 3 comes from table 3's own runs."""
        names = dict.fromkeys(run.experiment for run in self.runs if run.experiment.startswith(prefix))
        own = [group for name in names for group in self.of(name) if group.attack != "none"]
        defenses, sizes = {group.defense for group in own}, [_size(group) for group in own]
        shared = [group for group in self.of("paper-mnist") if group.attack != "none" and group.defense in defenses]
        groups = [*own, *(group for group in shared if _size(group) in sizes)]
        values = [(read_setting(group.runs[0].header, "experiment", *path), group) for group in groups]
        known = [(float(value), group) for value, group in values if isinstance(value, int | float)]
        return sorted(known, key=lambda pair: (pair[0], _rank(pair[1])))


def parse_printed(dataset: str, group: Group) -> float | None:
    """The final accuracy that the paper prints for a defense."""
    text = PRINTED.get(dataset.split(",")[0], {}).get(group.defense)
    return round(float(text.rstrip("%")) / 100, 6) if text else None


def select_paper_runs(runs: Sequence[RunRecord], drift: Sequence[DriftRun] = ()) -> Paper:
    """Those of the runs that repeat the paper; an error where none does."""
    known = (*MAIN, COUNTERS, SCORES, LAYERS, AGGREGATORS, BACKDOORS)
    mine = [run for run in runs if run.experiment in known or run.experiment.startswith((ATTACKERS, SKEW))]
    if not mine and not drift:
        names = ", ".join(sorted({run.experiment for run in runs})) or "no runs"
        raise ValueError(f"none of the runs repeats an experiment of the paper: {names}")
    return Paper(tuple(mine), tuple(drift))


def views(groups: Sequence[Group]) -> list[View]:
    """Each dataset once, or twice where BatchNorm was tested in two ways."""
    result = []
    for dataset in dict.fromkeys(group.setting for group in groups):
        mine = tuple(group for group in groups if group.setting == dataset)
        key = "batch_statistics_accuracy"
        other = tuple(group for group in mine if any(s.get(key) is not None for s in group.summaries))
        result.append(View(dataset, mine, "running statistics" if other else ""))
        if other:
            result.append(View(dataset, other, "batch statistics", key, key, "batch_statistics_tail"))
    return result


def before_attack(run: RunRecord, key: str = "accuracy") -> float | None:
    """What was measured last before the attack began."""
    start = read_setting(run.header, "experiment", "schedule", "attack_start")
    values = [getattr(record, key) for record in run.rounds if start and record.round < start]
    known: list[float] = [value for value in values if value is not None]
    return known[-1] if known else None


def _rank(group: Group) -> tuple[Any, ...]:
    """Defenses in the paper's order, then others; the attacked runs first."""
    known = DEFENSES.index(group.defense) if group.defense in DEFENSES else len(DEFENSES)
    return group.setting, group.attack == "none", known, group.defense


def _size(group: Group) -> tuple[Any, ...]:
    """Runs of another size belong to another figure."""
    paths = (("data", "dataset"), ("model",), ("training", "rounds"), ("schedule", "attack_start"))
    return tuple(str(read_setting(group.runs[0].header, "experiment", *path)) for path in paths)
