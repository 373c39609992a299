"""Who takes part in a tournament, in order of importance, and who is left out and why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ...attacks import Attack
from ...catalog.options import ConfigError
from ...catalog.registry import build_attack, build_defense
from ...core import Cohort, Defense, MissingTrustedData, Need, TooFewClients
from ...data import Dataset
from ...runs.experiment import Experiment
from ...runs.experiment_file import entry_names
from ..suitability import check_attack

Table = dict[str, Any]

REFERENCE: Table = {"name": "fedavg"}  # what every defense is compared with
NO_ATTACK: Table = {"name": "none"}
DEFENSES: tuple[Table, ...] = (  # the most important first: a small budget takes only the first ones
    {"name": "factions"},
    {"name": "multi-krum"},
    {"name": "median"},
    {"name": "fltrust"},
    {"name": "norm-clipping", "max_norm": "median"},
    {"name": "rfa"},
    {"name": "flame"},
    {"name": "trimmed-mean"},
    {"name": "foolsgold"},
)
ATTACKS: tuple[Table, ...] = (
    {"name": "inner-product", "epsilon": 5.0},  # against the honest direction, and long
    {"name": "min-max"},  # as harmful as is possible without being an outlier
    {"name": "label-flip"},  # wrong data, honest training
    {"name": "backdoor"},  # a trigger in images
    {"name": "mpaf"},  # toward a random model
    {"name": "tailored"},  # knows the defense
    {"name": "sign-flip"},
)


@dataclass(frozen=True)
class Candidates:
    """Tables as an experiment's file has them. The first defense is the reference, the first attack is none."""

    defenses: tuple[Table, ...]
    attacks: tuple[Table, ...]
    seconds: tuple[float, ...]  # that each defense needs for its part of a round
    left_out: tuple[str, ...]  # in words: who and why


def find_candidates(table: Mapping[str, Any], experiment: Experiment, dataset: Dataset, trial: Cohort) -> Candidates:
    """Those that the file names, then the default ones; without those that cannot take part."""
    defenses, seconds, unable = _select_defenses(table, experiment, trial)
    attacks, unsuited = _select_attacks(table, dataset)
    return Candidates(tuple(defenses), tuple(attacks), tuple(seconds), (*unable, *unsuited))


def _select_defenses(
    table: Mapping[str, Any], experiment: Experiment, trial: Cohort
) -> tuple[list[Table], list[float], list[str]]:
    given = [dict(entry) for entry in table.get("defenses", ())]
    has_guess = "malicious" in table.get("data", {})
    able, seconds, absent, seen = list[Table](), list[float](), list[str](), list[Defense]()
    own_names = {entry_names(entry)[0] for entry in given}
    for entry in (REFERENCE, *given, *DEFENSES):
        defense, why = build_defense(without_label(entry)), ""
        is_own, name = entry in given, entry_names(entry)[0]
        if not is_own:
            entry, defense, why = _fit_default(entry, defense, experiment, has_guess)
        if not why:
            try:
                spent = _time_defense(defense, trial)
            except (ValueError, TooFewClients, MissingTrustedData) as error:
                why = str(error)
        if why:
            absent.append(f"{name}: {why}")
        elif defense not in seen and (is_own or name not in own_names):
            seen.append(defense)
            able.append(entry)
            seconds.append(spent)
    return able, seconds, absent


def _fit_default(entry: Table, defense: Defense, experiment: Experiment, has_guess: bool) -> tuple[Table, Defense, str]:
    """The same with the true share of malicious clients as its guess; and why it cannot take part, if so."""
    if _takes_guess(defense):
        try:
            entry = {**entry, "contamination": experiment.data.malicious}
            defense = build_defense(entry)
        except ConfigError as error:
            return entry, defense, str(error)
    return entry, defense, _find_missing(defense, experiment, has_guess)


def _find_missing(defense: Defense, experiment: Experiment, has_guess: bool) -> str:
    """What the rule needs and the file does not provide."""
    if Need.SERVER_DATA in defense.needs and not experiment.data.trusted:
        return "needs data at the server (data.trusted = 100)"
    if Need.CLIENT_DATA in defense.needs and not experiment.data.shared:
        return "needs samples that clients share with the server (data.shared)"
    if Need.ATTACKER_COUNT in defense.needs and not has_guess:
        return "needs a guess of the share of malicious clients (data.malicious)"
    return ""


def _time_defense(defense: Defense, trial: Cohort) -> float:
    """Seconds of a round, after one that shows whether the defense can judge such a round at all."""
    state = defense.init()
    defense(trial, state)
    noise = torch.randn(trial.updates.shape, generator=torch.Generator().manual_seed(0))
    cohort = replace(trial, updates=noise.to(trial.updates) * 1e-2)
    start = time.perf_counter()
    defense(cohort, state)
    return time.perf_counter() - start


def _select_attacks(table: Mapping[str, Any], dataset: Dataset) -> tuple[list[Table], list[str]]:
    given = [dict(entry) for entry in table.get("attacks", ())]
    able, absent, seen = list[Table](), list[str](), list[Attack]()
    own_names = {entry_names(entry)[0] for entry in given}
    for entry in (NO_ATTACK, *given, *ATTACKS):
        attack = build_attack(without_label(entry))
        try:
            check_attack(attack, dataset)
        except ValueError as error:
            absent.append(f"{entry_names(entry)[0]}: {error}")
            continue
        if attack not in seen and (entry in given or entry_names(entry)[0] not in own_names):
            seen.append(attack)
            able.append(entry)
    return able, absent


def _takes_guess(defense: Defense) -> bool:
    parts: tuple[Any, ...] = (*defense.filters, defense.aggregator)
    return any(field.name == "contamination" for part in parts for field in fields(part))


def without_label(entry: Mapping[str, Any]) -> Table:
    return {key: value for key, value in entry.items() if key != "label"}
