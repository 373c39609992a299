"""An experiment: a grid of attacks × defenses × seeds, and everything else that decides its numbers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import tomli_w

from ..attacks import Attack
from ..catalog.options import ConfigError, unknown_name_error
from ..catalog.registry import build_defense, describe, describe_by
from ..core import Defense
from ..data import DATASETS
from ..data.partition import PARTITIONS, LabelSkew, Partition
from ..simulation.schedule import Schedule
from ..training.local_sgd import LocalSGD

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
    track: tuple[str, ...] = field(default=(), compare=False)  # trackers that are sent every round; decide no number
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
        # Younger than the first records: runs with what the program did before keep their folders.
        if not self.training.bfloat16:
            del table["training"]["bfloat16"]
        if self.training.fast_convolutions:
            del table["training"]["fast_convolutions"]
        plain = _without_null(asdict(Schedule()))
        for key in ("attack_period", "attack_rounds", "attack_scale", "attack_growth", "attack_scale_end"):
            if table["schedule"][key] == plain[key]:
                del table["schedule"][key]
        for entry in (*table["attacks"], *table["defenses"]):
            del entry["label"]
        for entry in table["defenses"]:
            if entry["buffers"] == "aggregator":
                del entry["buffers"]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:10]

    def folder(self, out: Path) -> Path:
        """Where a single run is kept."""
        (attack,), (defense,), (seed,) = self.attacks, self.defenses, self.seeds
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{attack.label}-{defense.label}").strip("-").lower()
        return out / self.name / f"{words[:80]}-seed{seed}-{self.fingerprint}"


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
