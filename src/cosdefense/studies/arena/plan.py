"""The arena: every defense against every attack, and which runs that takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...attacks import Attack
from ...catalog.options import ConfigError, unknown_name_error
from ...catalog.registry import get
from ...core import Cohort, Defense, MissingTrustedData, TooFewClients
from ...data import Dataset
from ...runs.data_section import load_dataset
from ...runs.experiment import Entry, Experiment, Training
from ...runs.experiment_file import entry_names, from_table, read_table
from ...simulation.schedule import Schedule
from ...testing.examples import LAYOUT, ExampleTrustedData
from ..study import experiments_folder
from ..suitability import build_trial, check_attack
from .tuned import Tuned

FIELDS = (  # files under experiments/arena
    *("digits", "mnist", "fashion-mnist", "cifar-10", "full-participation", "tabular"),
    *("mnist-1000", "mnist-1000-from-200", "mnist-150-trials"),
)
LIKE = "like"  # the key of a file that takes the attacks or defenses that it lacks from another field
EVALUATIONS = 60  # in a run, six of them in the last tenth, whatever its length

SCHEDULED = {  # attacks that also meet every defense at other times, by the label that they then have
    "late inner product": "inner product ε = 5",  # from the middle of the run on
    "on–off inner product": "inner product ε = 5",  # ten rounds on, ten rounds off
}

Part = TypeVar("Part")
T = TypeVar("T", Attack, Defense)


@dataclass(frozen=True)
class Plan:
    """The runs of an arena, and who cannot take part in it."""

    runs: tuple[Experiment, ...]
    left_out: tuple[str, ...]  # in words: who, where and why


@dataclass(frozen=True)
class Choice:
    """What of the files is wanted; None: all of it."""

    defenses: Sequence[str] | None = None  # labels, or names of the catalog
    attacks: Sequence[str] | None = None
    seeds: Sequence[int] = (0, 1, 2)
    rounds: int | None = None  # None: as the file says
    changes: Sequence[str] = ()  # "key=value", of the file
    tuned: Tuned | None = None  # settings that were chosen for rules; None: as the file says

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"--rounds must be at least 1, got {self.rounds}")


def plan(datasets: Sequence[str], attackers: Sequence[float], choice: Choice = Choice()) -> Plan:
    """The runs on each dataset with each share of attackers, each once and in the same order however they are named.

    A dataset is one of `FIELDS`, or an experiment file of your own. If that names no attacks or no defenses, they are
    those of the digits. What was not made for its data is left out.
    """
    check_fields(datasets, attackers)
    own = [dataset for dataset in datasets if dataset not in FIELDS]
    planned: dict[Path, Experiment] = {}
    left_out: list[str] = []
    for dataset in sorted(set(datasets), key=[*FIELDS, *own].index):
        for share in sorted(set(attackers)):
            runs, absent = _plan_setting(dataset, share, choice)
            left_out += [
                f"{label} is left out at {100 * share:.3g}% attackers on {dataset}: {why}"
                for label, why in absent.items()
            ]
            for run in runs:
                planned.setdefault(run.folder(Path()), run)
    return Plan(tuple(planned.values()), tuple(left_out))


def check_fields(datasets: Sequence[str], attackers: Sequence[float]) -> None:
    """An error that names the first that cannot be."""
    for dataset in datasets:
        if dataset not in FIELDS and not dataset.endswith(".toml"):
            raise unknown_name_error("dataset", dataset, FIELDS)
    for share in attackers:
        if not 0 < share < 1:
            raise ConfigError(f"--attackers must lie between 0 and 1, got {share:g}")


def find_field(dataset: str) -> Path:
    """The file of a field."""
    return experiments_folder("arena") / f"{dataset}.toml" if dataset in FIELDS else Path(dataset)


def read_field(dataset: str, choice: Choice) -> dict[str, Any]:
    """The file of a field with attacks and defenses in it, those of the arena with the options chosen for them."""
    table = read_table(find_field(dataset), [*_override_rounds(choice.rounds), *choice.changes])
    other = table.pop(LIKE, None if dataset in FIELDS else "digits")
    is_own = dataset not in FIELDS and "defenses" in table
    if other:
        known = read_table(find_field(other))
        table = {key: known[key] for key in ("attacks", "defenses")} | table
    if dataset not in FIELDS:
        for key, reference in (("attacks", "none"), ("defenses", "fedavg")):  # what all others are measured by
            if all(entry.get("name") != reference for entry in table[key]):
                table[key] = [{"name": reference}, *table[key]]
    if choice.tuned and not is_own:
        rate = float(table.get("training", {}).get("lr", Training.lr))
        table["defenses"] = [choice.tuned.apply(entry, rate) for entry in table["defenses"]]
    return table


def name_setting(dataset: str, share: float, prefix: str = "arena") -> str:
    """The name of its experiment, which becomes a folder."""
    return f"{prefix}-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(dataset).stem)}-{100 * share:.6g}"


def _plan_setting(dataset: str, share: float, choice: Choice) -> tuple[list[Experiment], dict[str, str]]:
    """The runs on one dataset with one share of attackers, and who cannot take part."""
    table = {**read_field(dataset, choice), "name": name_setting(dataset, share)}
    return plan_table(table, find_field(dataset).parent, share, choice)


def plan_table(
    table: dict[str, Any], folder: Path, share: float, choice: Choice
) -> tuple[list[Experiment], dict[str, str]]:
    """The runs of an experiment's tables with this share of attackers, and who cannot take part."""
    table = {**table, "seeds": list(choice.seeds), "data": {**table.get("data", {}), "malicious": share}}
    experiment = from_table(table, folder)
    entries, tables = _add_scheduled(experiment.attacks, table["attacks"])
    attacks = _select_labels("attack", choice.attacks, tables, entries)
    wanted = _select_labels("defense", choice.defenses, table["defenses"], experiment.defenses)
    loaded, sampled = experiment.data.loaded, experiment.training.sampled
    is_own = loaded is not None or folder != experiments_folder("arena")  # its data or its model
    trial = build_trial(experiment, load_dataset(experiment)) if is_own else None
    attacks_able, absent = _select_able(entries, lambda attack: _check_suitable(_with_share(attack, share), loaded))
    defenses_able, unable = _select_able(
        experiment.defenses, lambda defense: _check_able(_defense_with_share(defense, share), sampled, trial)
    )
    schedules = {entry.label: _schedule_of(entry.label, experiment) for entry in attacks_able}
    runs: list[Experiment] = []
    for schedule in dict.fromkeys(schedules.values()):
        active = tuple(entry for entry in attacks_able if schedules[entry.label] == schedule)
        grid = replace(experiment, attacks=active, defenses=defenses_able, schedule=schedule)
        runs += _cells(grid, attacks, wanted)
    missed = {label: why for label, why in (absent | unable).items() if label in attacks | wanted}
    return runs, missed


def _add_scheduled(
    entries: Sequence[Entry[Attack]], tables: Sequence[Mapping[str, Any]]
) -> tuple[list[Entry[Attack]], list[Mapping[str, Any]]]:
    """The attacks and their tables, then those of them that are repeated with another schedule."""
    known = {entry.label: (entry, table) for entry, table in zip(entries, tables, strict=True)}
    repeated = [(label, *known[base]) for label, base in SCHEDULED.items() if base in known]
    return (
        [*entries, *(Entry(label, entry.part) for label, entry, _ in repeated)],
        [*tables, *({**table, "label": label} for label, _, table in repeated)],
    )


def _schedule_of(label: str, experiment: Experiment) -> Schedule:
    if label == "late inner product":
        return replace(experiment.schedule, attack_start=experiment.training.rounds // 2)
    if label == "on–off inner product":
        return replace(experiment.schedule, attack_period=20, attack_rounds=10)
    return experiment.schedule


def _select_able(entries: Sequence[Entry[T]], adapt: Callable[[T], T]) -> tuple[tuple[Entry[T], ...], dict[str, str]]:
    """Those that can take part, with the true share where they take a guess; and why the others cannot."""
    present, absent = list[Entry[T]](), dict[str, str]()
    for entry in entries:
        try:
            present.append(replace(entry, part=adapt(entry.part)))
        except (ValueError, TooFewClients, MissingTrustedData) as error:
            absent[entry.label] = str(error)
    return tuple(present), absent


def _cells(grid: Experiment, attacks: Collection[str], defenses: Collection[str]) -> Iterator[Experiment]:
    """What is wanted of the grid; the plain mean without an attack always, since all others are measured by it."""
    plain = get("fedavg")
    for cell in grid.cells():
        (attack,), (defense,) = cell.attacks, cell.defenses
        is_reference = attack.part == Attack() and defense.part == replace(plain, buffers=defense.part.buffers)
        if is_reference or (attack.label in attacks and defense.label in defenses):
            yield cell


def _override_rounds(rounds: int | None) -> list[str]:
    if rounds is None:
        return []
    return [f"training.rounds={rounds}", f"training.evaluate_every={max(1, rounds // EVALUATIONS)}"]


def _select_labels(
    kind: str, wanted: Sequence[str] | None, tables: Sequence[Mapping[str, Any]], entries: Sequence[Entry[Any]]
) -> set[str]:
    """The labels of the wanted entries; a name of the catalog may stand for several."""
    pairs = zip(entries, tables, strict=True)
    known = {entry.label: {name.casefold() for name in entry_names(table)} for entry, table in pairs}
    if wanted is None:
        return set(known)
    selected = set()
    for name in wanted:
        labels = {label for label, names in known.items() if name.casefold() in names}
        if not labels:
            raise unknown_name_error(kind, name, known)
        selected |= labels
    return selected


def _defense_with_share(defense: Defense, share: float) -> Defense:
    """The defense with the true share of attackers wherever it takes a guess."""
    filters = tuple(_with_share(part, share) for part in defense.filters)
    return replace(defense, filters=filters, aggregator=_with_share(defense.aggregator, share))


def _with_share(part: Part, share: float) -> Part:
    takes_a_guess = any(field.name == "contamination" for field in fields(part))  # type: ignore[arg-type]
    return replace(part, contamination=share) if takes_a_guess else part  # type: ignore[type-var]


def _check_suitable(attack: Attack, dataset: Dataset | None) -> Attack:
    """The attack, if it was made for such data: an error otherwise."""
    if dataset is not None:
        check_attack(attack, dataset)
    return attack


def _check_able(defense: Defense, n: int, trial: Cohort | None) -> Defense:
    """The defense, if its mathematics works with n clients, and with one's own data: an error otherwise."""
    if trial is not None:
        defense(trial, defense.init())
        return defense
    updates, params = torch.zeros(n, LAYOUT.size), torch.zeros(LAYOUT.size)
    defense(Cohort.of(updates, params, LAYOUT, torch.arange(n), trusted_data=ExampleTrustedData()), defense.init())
    return defense
