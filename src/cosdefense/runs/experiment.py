"""An experiment: a grid of attacks × defenses × seeds, and everything else that decides its numbers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import tomli_w
from torch import Tensor
from torch.optim import Optimizer

from ..attacks import Attack
from ..catalog.options import ConfigError
from ..catalog.registry import build_defense, describe, lookup
from ..core import Defense
from ..simulation.client_training import LocalWork
from ..simulation.loop import Weighting
from ..simulation.schedule import Schedule
from ..training.local_sgd import LocalSGD
from ..training.losses import LOSSES, LossFunction
from ..training.metrics import METRICS, Metric, make_metric
from ..training.optimizers import OPTIMIZERS, SGD, LocalOptimizer
from .data_section import Data

T = TypeVar("T", Attack, Defense)

YOUNGER = ("loss", "metrics", "optimizer", "local_epochs", "weighting")  # options of [training]


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A part of the grid and what it is called in tables."""

    label: str
    part: T


@dataclass(frozen=True)
class Training:
    """How long, how many at a time, and how each client trains."""

    rounds: int = 1000
    sampled: int = 10  # clients per round; in a file: all that the data name, up to 50
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
    loss: str = "auto"  # cross-entropy for classes and mse for values; a name, or package.module:function
    metrics: tuple[str, ...] = ()  # beside loss and accuracy: names, or package.module:function
    optimizer: str = SGD  # a name, or package.module:function
    local_epochs: int | None = None  # passes of each client over its samples, in the place of local_steps
    weighting: Weighting = "equal"  # or by samples: a client counts as much as it has samples
    bfloat16: bool = False  # train through activations of eight bits: faster still on a GPU; testing stays as it is

    def __post_init__(self) -> None:
        for name in ("rounds", "sampled", "batch", "local_steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.adversarial is not None and not 0 < self.adversarial <= 1:
            raise ValueError(f"adversarial must be in (0, 1], got {self.adversarial}")
        if self.max_update_memory is not None and not self.max_update_memory >= 0:
            raise ValueError(f"max_update_memory must be at least 0 GB, got {self.max_update_memory}")
        if self.local_epochs is not None and (self.local_epochs < 1 or self.local_steps != 1):
            raise ValueError(
                f"local_epochs must be at least 1, and takes the place of local_steps, got {self.local_epochs} and "
                f"{self.local_steps}"
            )
        if len(set(self.metrics)) != len(self.metrics):
            raise ValueError(f"metrics must be different, got {', '.join(self.metrics)}")
        _ = self.trainer, self.list_metrics(has_classes=True), self.choose_loss(has_classes=True)  # their own checks

    @property
    def trainer(self) -> LocalSGD:
        if self.optimizer == SGD:
            return LocalSGD(self.lr, self.momentum, self.weight_decay)
        if self.momentum:
            raise ValueError(f"momentum is an option of the optimizer sgd, got {self.momentum} for {self.optimizer}")
        make = lookup(OPTIMIZERS, self.optimizer, Optimizer, "optimizer")
        return LocalOptimizer(self.lr, weight_decay=self.weight_decay, make=make)

    @property
    def local_work(self) -> LocalWork:
        return LocalWork(self.batch, self.local_steps, self.local_epochs)

    def choose_loss(self, *, has_classes: bool) -> LossFunction:
        """The loss function, which may depend on what the targets are."""
        name = ("cross-entropy" if has_classes else "mse") if self.loss == "auto" else self.loss
        return lookup(LOSSES, name, Tensor, "loss")

    def list_metrics(self, *, has_classes: bool) -> list[Metric]:
        """What is measured beside loss and accuracy. Of values always R², which takes the place of accuracy."""
        names = self.metrics if has_classes or "r2" in self.metrics else (*self.metrics, "r2")
        return [make_metric(name, lookup(METRICS, name, float, "metric")) for name in names]


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
    return {
        "name": experiment.name,
        "seeds": list(experiment.seeds),
        "data": experiment.data.to_table(),
        "model": dict(experiment.model),
        "training": _training_table(experiment.training),
        "schedule": _without_null(asdict(experiment.schedule)),
        "attacks": [{"label": entry.label, **describe(entry.part)} for entry in experiment.attacks],
        "defenses": [{"label": entry.label, **describe(entry.part)} for entry in experiment.defenses],
    }


def _training_table(training: Training) -> dict[str, Any]:
    """Without options that are younger than the first records and not used: such runs keep their folders."""
    table, plain = _without_null(asdict(training)), _without_null(asdict(Training()))
    return {key: value for key, value in table.items() if key not in YOUNGER or value != plain[key]}


def _without_null(options: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null."""
    return {key: "none" if value is None else value for key, value in options.items()}


def to_toml(experiment: Experiment) -> str:
    return tomli_w.dumps(to_table(experiment))
