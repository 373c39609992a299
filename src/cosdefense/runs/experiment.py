"""An experiment: frozen dataclasses ⇄ TOML. One file is a grid of attacks × defenses × seeds."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import tomli_w

from ..attacks import Attack
from ..catalog.options import ConfigError, call, check_options, coerce, unknown_name_error
from ..catalog.registry import build, build_attack, build_defense, describe, describe_by, lookup
from ..core import Defense
from ..core.experiment_folder import reading_from
from ..data import DATASETS
from ..data.partition import PARTITIONS, LabelSkew, Partition
from ..simulation.schedule import Schedule
from ..training.local_sgd import LocalSGD
from ..training.models import MODELS

T = TypeVar("T", Attack, Defense)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A part of the grid and what it is called in tables."""

    label: str
    part: T


@dataclass(frozen=True)
class Data:
    """Which samples, and how they are spread over which clients."""

    dataset: str = "digits"
    clients: int = 100
    malicious: float = 0.3  # the share of malicious clients
    partition: Partition = LabelSkew()
    trusted: int = 0  # training samples the server holds, and no client; some defenses need about a hundred
    shared: int = 0  # of its own samples, how many each client shares with the server, once

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise unknown_name_error("dataset", self.dataset, DATASETS)
        if self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}")
        if not 0 <= self.malicious < 1:
            raise ValueError(f"malicious must be in [0, 1), got {self.malicious}")
        for name in ("trusted", "shared"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class Training:
    """How long, how many at a time, and how each client trains."""

    rounds: int = 1000
    sampled: int = 10  # clients per round
    batch: int = 128
    local_steps: int = 1
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    evaluate_every: int = 10
    adversarial: float | None = None  # also test on images that PGD has moved by at most this much per pixel
    batch_statistics: bool = False  # also test with BatchNorm's statistics taken from the test images themselves
    max_update_memory: float | None = (
        None  # GB of updates kept in memory, larger rounds use a file; none: half of what is free
    )
    tf32: bool = False  # let a GPU's matrix units round what convolutions read to ten bits: faster; a CPU never does
    fast_convolutions: bool = True  # on a CPU: fewer multiplications, other rounding (training/fast_convolution.py)
    bfloat16: bool = False  # train through activations of eight bits: faster still on a GPU; testing stays as it is

    def __post_init__(self) -> None:
        for name in ("rounds", "sampled", "batch", "local_steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.adversarial is not None and not 0 < self.adversarial <= 1:
            raise ValueError(f"adversarial must be in (0, 1], got {self.adversarial}")
        if self.max_update_memory is not None and not self.max_update_memory >= 0:
            raise ValueError(f"max_update_memory must be at least 0 GB, got {self.max_update_memory}")
        _ = self.trainer  # its own checks

    @property
    def trainer(self) -> LocalSGD:
        return LocalSGD(self.lr, self.momentum, self.weight_decay)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the numbers. A single run is an experiment with one attack, one defense and one seed."""

    name: str
    data: Data = Data()
    model: tuple[tuple[str, Any], ...] = (("name", "small-cnn"), ("width", 16))  # its name and options
    training: Training = Training()
    schedule: Schedule = Schedule()
    attacks: tuple[Entry[Attack], ...] = (Entry("none", Attack()),)
    defenses: tuple[Entry[Defense], ...] = (Entry("fedavg", build_defense({"name": "fedavg"})),)
    seeds: tuple[int, ...] = (0,)
    source: Path | None = field(default=None, compare=False)  # the folder whose Python files may define its parts

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.name):
            rule = "up to 100 letters, digits, '.', '_' and '-'"
            raise ConfigError(f"name becomes a folder: it takes {rule}, got {self.name!r}")
        if self.training.sampled > self.data.clients:
            raise ConfigError(
                f"training.sampled must be at most {self.data.clients} clients, got {self.training.sampled}"
            )
        lists: dict[str, list[str | int]] = {
            "attacks": [entry.label for entry in self.attacks],
            "defenses": [entry.label for entry in self.defenses],
            "seeds": [*self.seeds],
        }
        for kind, labels in lists.items():
            if not labels:
                raise ConfigError(f"{kind} needs at least one entry")
            for label in labels:
                if labels.count(label) > 1:
                    raise ConfigError(f"{kind} holds {label!r} twice; give one of them another label")
        for entries in (self.attacks, self.defenses):
            parts: list[Any] = [entry.part for entry in entries]
            for i, part in enumerate(parts):
                if part in parts[:i]:  # it would be one run, counted twice
                    raise ConfigError(f"{entries[parts.index(part)].label!r} and {entries[i].label!r} are the same")

    def cells(self) -> Iterator[Experiment]:
        """Every single run of the grid."""
        for attack in self.attacks:
            for defense in self.defenses:
                for seed in self.seeds:
                    yield replace(self, attacks=(attack,), defenses=(defense,), seeds=(seed,))

    @property
    def fingerprint(self) -> str:
        """A digest of everything that decides the numbers; labels, the name and the memory to use do not."""
        table = to_table(self)
        del table["name"], table["training"]["max_update_memory"]
        # Younger than the first records: runs with the defaults keep their folders.
        if not self.training.bfloat16:
            del table["training"]["bfloat16"]
        if self.training.fast_convolutions:
            del table["training"]["fast_convolutions"]
        for entry in (*table["attacks"], *table["defenses"]):
            del entry["label"]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:10]

    def folder(self, out: Path) -> Path:
        """Where a single run is kept."""
        (attack,), (defense,), (seed,) = self.attacks, self.defenses, self.seeds
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{attack.label}-{defense.label}").strip("-").lower()
        return out / self.name / f"{words[:80]}-seed{seed}-{self.fingerprint}"


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a TOML file, change some of its keys ("training.rounds=100"), check everything."""
    return from_table(read_table(path, overrides), path.parent)


def read_table(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The same before it is checked."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for override in overrides:
        _override(table, override)
    table.setdefault("name", path.stem)
    return table


def from_table(table: Mapping[str, Any], source: Path | None = None) -> Experiment:
    """An experiment from nested tables, every mistake named by its key.

    Parts may be defined beside its file, in the folder `source`: `name = "mine:Part"` is the class `Part` of `mine.py`.
    """
    with reading_from(source):
        return _from_table(table, source)


def _from_table(table: Mapping[str, Any], source: Path | None) -> Experiment:
    known = {field.name for field in fields(Experiment)} - {"source"}
    for key in table:
        if key not in known:
            raise unknown_name_error("key", key, known)
    built: dict[str, Any] = {}
    if "name" in table:
        built["name"] = coerce(table["name"], str, "name")
    if "data" in table:
        built["data"] = _data(coerce(table["data"], Mapping, "data"))
    if "model" in table:
        built["model"] = _model(coerce(table["model"], Mapping, "model"))
    if "training" in table:
        built["training"] = call(Training, coerce(table["training"], Mapping, "training"), "training")
    if "schedule" in table:
        built["schedule"] = call(Schedule, coerce(table["schedule"], Mapping, "schedule"), "schedule")
    for kind, build_part in (("attacks", build_attack), ("defenses", build_defense)):
        if kind in table:
            entries = coerce(table[kind], tuple[Mapping[str, Any], ...], kind)
            parts = [build_part(_without(entry, "label")) for entry in entries]  # first: labels rely on their checks
            built[kind] = tuple(Entry(_label(entry), part) for entry, part in zip(entries, parts, strict=True))
    if "seeds" in table:
        built["seeds"] = coerce(table["seeds"], tuple[int, ...], "seeds")
    if "name" not in built:
        raise ConfigError("an experiment needs a name")
    return Experiment(**built, source=source)


def to_table(experiment: Experiment) -> dict[str, Any]:
    """The nested tables again, every option written out."""
    data = {field.name: getattr(experiment.data, field.name) for field in fields(Data)}
    data["partition"] = describe_by(PARTITIONS, experiment.data.partition)
    return {
        "name": experiment.name,
        "seeds": list(experiment.seeds),
        "data": data,
        "model": dict(experiment.model),
        "training": _without_null(asdict(experiment.training)),
        "schedule": _without_null(asdict(experiment.schedule)),
        "attacks": [{"label": entry.label, **describe(entry.part)} for entry in experiment.attacks],
        "defenses": [{"label": entry.label, **describe(entry.part)} for entry in experiment.defenses],
    }


def _without_null(options: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null."""
    return {key: "none" if value is None else value for key, value in options.items()}


def to_toml(experiment: Experiment) -> str:
    return tomli_w.dumps(to_table(experiment))


def _data(table: Mapping[str, Any]) -> Data:
    given = dict(table)
    if "partition" in given:
        given["partition"] = build(PARTITIONS, given["partition"], Partition, "data.partition")  # type: ignore[type-abstract]
    data: Data = call(Data, given, "data")
    return data


def _model(table: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The model's name and all its options, defaults included."""
    if "name" not in table:
        raise ConfigError(f"model needs a name: one of {', '.join(sorted(MODELS))}, or package.module:function")
    make = lookup(MODELS, table["name"], "model")
    reserved = ("shape", "n_classes")
    given = check_options(make, _without(table, "name"), f"model {table['name']}", reserved)
    parameters = inspect.signature(make).parameters
    for name in reserved:
        if name not in parameters:
            raise ConfigError(f"model {table['name']} must take {' and '.join(reserved)}, got {', '.join(parameters)}")
    options = {name: parameter.default for name, parameter in parameters.items() if name not in reserved} | given
    missing = [name for name, value in options.items() if value is inspect.Parameter.empty]
    if missing:
        raise ConfigError(f"model {table['name']} needs {', '.join(missing)}")
    return (("name", table["name"]), *options.items())


def entry_names(table: Mapping[str, Any]) -> tuple[str, str]:
    """How an entry of a grid may be called: by its label, and by what it is, whatever its options."""
    return _label(table), str(table["name"]) if "name" in table else _part_names(table)


def _label(table: Mapping[str, Any]) -> str:
    """As the user said, or the name with the options that were given."""
    if "label" in table:
        return str(coerce(table["label"], str, "label"))
    if "name" in table:
        options = ", ".join(f"{key}={value}" for key, value in table.items() if key != "name")
        return f"{table['name']}({options})" if options else str(table["name"])
    return _part_names(table)


def _part_names(table: Mapping[str, Any]) -> str:
    """The names of the parts of a defense that is spelled out."""
    parts = [*table.get("filters", ()), table.get("aggregator", {"name": "mean"}), *table.get("hooks", ())]
    return " + ".join(str(part.get("name")) if isinstance(part, Mapping) else str(part) for part in parts)


def _without(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set needs key=value, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a text
    *path, last = key.strip().split(".")
    for step in path:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}: {step!r} is not a table")
    table[last] = value
