"""The arena's runs sorted out: fields, fighters, and what each lost to whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from ...catalog.registry import describe, get
from ...core import Need
from ...report.experiment_settings import setting
from ...report.groups import Group, grouped
from ...runs.records import RunRecord

PREFIX = "arena-"  # how its experiments' names begin
DATASETS = {"digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}
ORACLES = {Need.ATTACKER_COUNT, Need.SERVER_DATA, Need.CLIENT_DATA}  # what a server cannot know by itself
NONE, ADAPTIVE, BACKDOOR = "none", "adaptive", "backdoor"  # attacks that tables treat differently, by their names
SURVIVAL = 0.5  # of the clean accuracy: with less, the model is destroyed and whom it makes a rule reject means nothing


@dataclass(frozen=True)
class Fighter:
    """A defense on one field, and how it ended under each attack."""

    defense: str
    needs: frozenset[Need]
    groups: Mapping[str, Group]  # by attack
    clean: float | None  # the field's

    @property
    def oracle(self) -> bool:
        return bool(self.needs & ORACLES)

    @cached_property
    def accuracies(self) -> dict[str, float]:
        """By attack, the mean over seeds of what was reached in the last tenth of the rounds."""
        found = {attack: tails(group) for attack, group in self.groups.items()}
        return {attack: fmean(known) for attack, known in found.items() if known}

    @cached_property
    def attacked(self) -> dict[str, float]:
        """The same under attacks that do not know the defense."""
        return {name: end for name, end in self.accuracies.items() if kind(self.groups[name]) not in (NONE, ADAPTIVE)}

    @property
    def worst(self) -> tuple[str, float] | None:
        """The attack that took most from it, and what was left."""
        return min(self.attacked.items(), key=lambda pair: pair[1]) if self.attacked else None

    @property
    def mean(self) -> float | None:
        return fmean(self.attacked.values()) if self.attacked else None

    def under(self, name: str) -> float | None:
        """The accuracy under the attack of that name in the catalog; the lowest where there are several such."""
        found = [end for attack, end in self.accuracies.items() if kind(self.groups[attack]) == name]
        return min(found, default=None)

    def lost(self, accuracy: float | None) -> float | None:
        """Points of accuracy below plain averaging without an attack, as they are shown; there is no negative zero."""
        return None if accuracy is None or self.clean is None else round(100 * (self.clean - accuracy), 1) + 0.0

    @property
    def survived(self) -> list[str]:
        """Of those attacks, the ones that left a model worth the name."""
        return [name for name, end in self.attacked.items() if self.clean and end > SURVIVAL * self.clean]

    def mean_of(self, key: str, attacks: Sequence[str]) -> float | None:
        """A number of the summaries: the mean over seeds, then over attacks."""
        found = [[summary.get(key) for summary in self.groups[attack].summaries] for attack in attacks]
        known = [[value for value in values if value is not None] for values in found]
        means = [fmean(values) for values in known if values]
        return fmean(means) if means else None

    def attacks_of(self, name: str) -> list[str]:
        """Attacks of that name in the catalog."""
        return [attack for attack, group in self.groups.items() if kind(group) == name]

    @property
    def milliseconds(self) -> float | None:
        """Of the server's rule in a round: the median over all its runs, since other work may share the computer."""
        pairs = [pair for group in self.groups.values() for pair in zip(group.runs, group.summaries, strict=True)]
        known = [(summary.get("seconds", {}).get("defend"), run.n_rounds) for run, summary in pairs]
        found = [1000 * seconds / n_rounds for seconds, n_rounds in known if seconds is not None and n_rounds]
        return median(found) if found else None


@dataclass(frozen=True)
class Field:
    """One dataset with one share of attackers."""

    name: str  # of the experiment, without the arena's prefix
    title: str
    clean: float | None  # accuracy of plain averaging without an attack; None: not run yet
    attacks: tuple[str, ...]  # in the order of the runs
    fighters: tuple[Fighter, ...]  # those without an oracle first; among equals the best worst case first

    def side(self, oracle: bool) -> list[Fighter]:
        return [fighter for fighter in self.fighters if fighter.oracle == oracle]


def fields_of(runs: Sequence[RunRecord]) -> list[Field]:
    """Every field on which something was run; an error where there is none."""
    mine = [run for run in runs if run.experiment.startswith(PREFIX)]
    if not mine:
        names = ", ".join(sorted({run.experiment for run in runs})) or "no runs"
        raise ValueError(f"none of the runs belongs to an arena: {names}")
    found = []
    for name in dict.fromkeys(run.experiment for run in mine):
        groups = grouped([run for run in mine if run.experiment == name])
        ways = list(dict.fromkeys(group.setting for group in groups))  # one, unless something else was varied
        for number, way in enumerate(ways):
            own = name.removeprefix(PREFIX) + (f"-way-{number + 1}" if len(ways) > 1 else "")
            found.append(_field(own, way, [group for group in groups if group.setting == way]))
    return found


def _field(name: str, way: str, groups: Sequence[Group]) -> Field:
    header = groups[0].runs[0].header
    dataset, share = (setting(header, "experiment", "data", key) for key in ("dataset", "malicious"))
    plain = [
        group for group in groups if kind(group) == NONE and _described(group, "defenses") == describe(get("fedavg"))
    ]
    ends = [end for group in plain for end in tails(group)]
    clean = fmean(ends) if ends else None
    title = ", ".join(filter(None, (f"{DATASETS.get(dataset, dataset)}, {100 * share:.3g}% attackers", way)))
    fighters = []
    for defense in dict.fromkeys(group.defense for group in groups):
        own = [group for group in groups if group.defense == defense]
        fighters.append(
            Fighter(
                defense,
                frozenset(map(Need, own[0].runs[0].header["needs"])),
                {group.attack: group for group in own},
                clean,
            )
        )
    attacks = tuple(dict.fromkeys(group.attack for group in groups))
    return Field(name, title, clean, attacks, tuple(sorted(fighters, key=_place)))


def _place(fighter: Fighter) -> tuple[bool, float]:
    return fighter.oracle, -fighter.worst[1] if fighter.worst else math.inf


def tails(group: Group) -> list[float]:
    """Accuracy in the last tenth of the rounds, seed by seed. What is not a number is no accuracy at all."""
    found = []
    for run, summary in zip(group.runs, group.summaries, strict=True):
        tail = summary.get("tail_accuracy")
        if tail is not None:
            found.append(tail if math.isfinite(tail) else 0.0)
        elif run.summary is not None:  # a finished run was evaluated, and JSON has no other word for NaN
            found.append(0.0)
    return found


def kind(group: Group) -> str:
    """What the catalog calls its attack."""
    return str(_described(group, "attacks").get("name", ""))


def _described(group: Group, key: str) -> dict[str, Any]:
    """The attack or the defense as the header describes it."""
    entries: Sequence[Mapping[str, Any]] = setting(group.runs[0].header, "experiment", key)
    return {name: value for name, value in entries[0].items() if name != "label"}
