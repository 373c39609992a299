"""The arena's runs by setting and defense: what each defense lost under each attack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from ...catalog.registry import describe, get
from ...core import Need
from ...report.experiment_settings import read_setting
from ...report.groups import Group, group_runs
from ...runs.metrics import tail_quality
from ...runs.records import RunRecord
from .intervals import find_interval
from .part_options import show_unusual_options
from .seeds import DESIGN, OTHER, SEED_SETS, find_seed_set

PREFIX = "arena-"  # how its experiments' names begin
DATASETS = {"digits": "digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}
FIELDS = {  # those whose dataset does not say all
    "full-participation": "Fashion-MNIST, all of 20 clients, five local epochs",
    "tabular": "Breast cancer (a table)",
    "mnist-1000": "MNIST, 1,000 rounds",
    "mnist-1000-from-200": "MNIST, 1,000 rounds, attack and defense from round 200",
    "mnist-150-trials": "MNIST, 150 trials",
}
ORACLES = {Need.ATTACKER_COUNT, Need.SERVER_DATA, Need.CLIENT_DATA}  # what a server does not know without help
NONE, BACKDOOR = "none", "backdoor"  # attacks that tables treat differently, by their names
INFORMED = ("adaptive", "tailored", "planning", "persistent")  # those that know the defense
SURVIVAL = 0.5  # of the clean accuracy: with less, the model is destroyed, and whom a rule then rejects means nothing


@dataclass(frozen=True)
class DefenseResult:
    """A defense in one setting, and how it ended under each attack."""

    defense: str
    needs: frozenset[Need]
    groups: Mapping[str, Group]  # by attack
    clean: float | None  # the setting's
    clean_by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def oracle(self) -> bool:
        return bool(self.needs & ORACLES)

    @property
    def n_runs(self) -> int:
        return sum(len(group.runs) for group in self.groups.values())

    @cached_property
    def by_seed(self) -> dict[str, dict[int, float]]:
        """By attack and seed, the accuracy in the last tenth of the rounds."""
        tails = {attack: read_tail_accuracies(group) for attack, group in self.groups.items()}
        return {attack: known for attack, known in tails.items() if known}

    @cached_property
    def accuracies(self) -> dict[str, float]:
        """By attack, its mean over seeds."""
        return {attack: fmean(known.values()) for attack, known in self.by_seed.items()}

    @cached_property
    def attacked(self) -> dict[str, float]:
        """The same without no attack."""
        return {attack: end for attack, end in self.accuracies.items() if self._catalog_name(attack) != NONE}

    @property
    def worst(self) -> tuple[str, float] | None:
        """The attack that cost most, also of those that know the defense, and the accuracy that was left."""
        pairs = self.attacked.items()
        return max(pairs, key=lambda pair: self._find_clean(pair[0]) - pair[1], default=None)

    @property
    def rank(self) -> float:
        """The lower, the better the worst case."""
        return self._find_clean(self.worst[0]) - self.worst[1] if self.worst else math.inf

    @property
    def mean(self) -> float | None:
        return fmean(self.attacked.values()) if self.attacked else None

    def most_lost_under(self, *names: str) -> float | None:
        """The points lost under the attack of that name in the catalog; the most where there are several such."""
        return self._find_most_lost([attack for name in names for attack in self.attacks_named(name)])

    @property
    def most_lost_uninformed(self) -> float | None:
        """The most points lost under attacks that do not know the defense."""
        return self._find_most_lost([attack for attack in self.attacked if self._catalog_name(attack) not in INFORMED])

    @property
    def mean_lost(self) -> float | None:
        """Points lost, the mean over attacks."""
        if self.clean is None or not self.attacked:
            return None
        return _round_points(fmean(self._find_clean(attack) - end for attack, end in self.attacked.items()))

    @property
    def collapses(self) -> tuple[int, int] | None:
        """How many attacked runs ended below half of the accuracy of plain averaging without an attack; of how many."""
        if self.clean is None or not self.attacked:
            return None
        ends = [end for attack in self.attacked for end in self.by_seed[attack].values()]
        return sum(end < SURVIVAL * self.clean for end in ends), len(ends)

    def lowest_of(self, key: str, attacks: Iterable[str]) -> float | None:
        """A number of the summaries: the mean over seeds, and of those the lowest over attacks."""
        means = [mean for attack in attacks if (mean := self.mean_of(key, [attack])) is not None]
        return min(means, default=None)

    def interval_lost(self, attack: str) -> tuple[float, float] | None:
        """A 95 % interval over seeds of the points lost, each seed against plain averaging without an attack on it."""
        ends = self.by_seed.get(attack, {})
        pairs = [(self.clean_by_seed[seed], end) for seed, end in ends.items() if seed in self.clean_by_seed]
        if len(pairs) < len(ends) or self.clean is None:
            return None
        losses = [100 * (clean - end) for clean, end in pairs]
        return find_interval(losses, 100 * (self.clean - 1), 100 * self.clean)

    def lost(self, attack: str) -> float | None:
        """Points of accuracy below plain averaging without an attack on the same seeds, as they are shown."""
        end = self.accuracies.get(attack)
        return None if end is None or self.clean is None else _round_points(self._find_clean(attack) - end)

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
    def options(self) -> str:
        """Those that are not the defaults of their parts, but for what all rules know about the attackers."""
        return show_unusual_options(_read_part(next(iter(self.groups.values())), "defenses"))

    @property
    def milliseconds(self) -> float | None:
        """Of the server's rule in a round: the median over all its runs, since other work may share the computer."""
        pairs = [pair for group in self.groups.values() for pair in zip(group.runs, group.summaries, strict=True)]
        known = [(summary.get("seconds", {}).get("defend"), run.n_rounds) for run, summary in pairs]
        by_run = [1000 * seconds / n_rounds for seconds, n_rounds in known if seconds is not None and n_rounds]
        return median(by_run) if by_run else None

    def _find_clean(self, attack: str) -> float:
        """Plain averaging without an attack, on the seeds of this attack's runs; on all where it lacks one of them."""
        seeds = self.by_seed[attack].keys()
        whole = seeds <= self.clean_by_seed.keys()
        return fmean(self.clean_by_seed[seed] for seed in seeds) if whole else self.clean or 0.0

    def _find_most_lost(self, attacks: Sequence[str]) -> float | None:
        return max((lost for attack in attacks if (lost := self.lost(attack)) is not None), default=None)

    def _catalog_name(self, attack: str) -> str:
        return _read_attack_name(self.groups[attack])


@dataclass(frozen=True)
class Setting:
    """One field with one share of attackers, on design seeds or on test seeds."""

    name: str  # of the experiment, without the arena's prefix
    title: str
    clean: float | None  # accuracy of plain averaging without an attack; None: not run yet
    clean_worst_class: float | None  # its lowest recall of a class
    seeds: str  # design, test or other
    attacks: tuple[str, ...]  # in the order of the runs
    results: tuple[DefenseResult, ...]  # those without an oracle first; among equals the best worst case first

    def results_with(self, oracle: bool) -> list[DefenseResult]:
        return [result for result in self.results if result.oracle == oracle]


def _round_points(lost: float) -> float:
    """There is no negative zero."""
    return round(100 * lost, 1) + 0.0


def list_settings(runs: Sequence[RunRecord]) -> list[Setting]:
    """Every setting that has runs; an error where there is none."""
    mine = [run for run in runs if run.experiment.startswith(PREFIX)]
    if not mine:
        names = ", ".join(sorted({run.experiment for run in runs})) or "no runs"
        raise ValueError(f"none of the runs belongs to an arena: {names}")
    settings = []
    for name in dict.fromkeys(run.experiment for run in mine):
        groups = _group_without_schedule([run for run in mine if run.experiment == name])
        variants = list(dict.fromkeys(group.setting for group in groups))  # one, unless something else was varied
        for number, variant in enumerate(variants):
            own = name.removeprefix(PREFIX) + (f"-variant-{number + 1}" if len(variants) > 1 else "")
            same = [group for group in groups if group.setting == variant]
            settings += [
                _make_setting(own, variant, part, seeds)
                for seeds in (*SEED_SETS, OTHER)
                if (part := [some for group in same if (some := _select_seeds(group, seeds)).runs])
            ]
    return settings


def _select_seeds(group: Group, seeds: str) -> Group:
    return replace(group, runs=tuple(run for run in group.runs if find_seed_set(run.header["seed"]) == seeds))


def _group_without_schedule(runs: Sequence[RunRecord]) -> list[Group]:
    """When an attack is active is a property of the attack here, and its label says so."""
    whole = {}
    for run in runs:
        experiment = {key: value for key, value in run.header["experiment"].items() if key != "schedule"}
        alike = replace(run, header={**run.header, "experiment": experiment})
        whole[id(alike)] = alike, run
    groups = group_runs([alike for alike, _ in whole.values()])
    return [replace(group, runs=tuple(whole[id(run)][1] for run in group.runs)) for group in groups]


def read_tail_accuracies(group: Group) -> dict[int, float]:
    """Accuracy, or R² of values, in the last tenth of the rounds, by seed. What is not a number counts as zero."""
    accuracies = {}
    for run, summary in zip(group.runs, group.summaries, strict=True):
        tail = tail_quality(summary)
        if tail is not None:
            accuracies[run.header["seed"]] = tail if math.isfinite(tail) else 0.0
        elif run.summary is not None:  # a finished run was evaluated, and JSON writes NaN as null
            accuracies[run.header["seed"]] = 0.0
    return accuracies


def _make_setting(name: str, variant: str, groups: Sequence[Group], seeds: str) -> Setting:
    header = groups[0].runs[0].header
    source, share = (read_setting(header, "experiment", "data", key) for key in ("dataset", "malicious"))
    plain = next((group for group in groups if _is_clean(group)), None)
    by_seed = read_tail_accuracies(plain) if plain else {}
    clean = fmean(by_seed.values()) if by_seed else None
    dataset = source["name"] if isinstance(source, Mapping) else source
    field_name = header["experiment"]["name"].removeprefix(PREFIX).rpartition("-")[0]
    known = FIELDS.get(field_name) or DATASETS.get(dataset, dataset)
    words = [f"{known}, {100 * share:.3g}% attackers", variant, "" if seeds == DESIGN else f"{seeds} seeds"]
    results = []
    for defense in dict.fromkeys(group.defense for group in groups):
        own = {group.attack: group for group in groups if group.defense == defense}
        needs = next(iter(own.values())).runs[0].header["needs"]
        results.append(DefenseResult(defense, frozenset(map(Need, needs)), own, clean, by_seed))
    attacks = tuple(dict.fromkeys(group.attack for group in groups))
    worst_classes = [summary.get("worst_class") for summary in plain.summaries] if plain else []
    known_classes = [value for value in worst_classes if value is not None]
    return Setting(
        name if seeds == DESIGN else f"{name}-{seeds}",
        ", ".join(filter(None, words)),
        clean,
        fmean(known_classes) if known_classes else None,
        seeds,
        attacks,
        tuple(sorted(results, key=lambda result: (result.oracle, result.rank))),
    )


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
