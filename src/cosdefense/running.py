"""Run one cell of an experiment: record it, checkpoint it, go on where it stopped."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from . import __version__
from .attacks import Attack
from .catalog import lookup
from .checkpoint import load_snapshot, save_snapshot, write_atomically
from .cohort import Cohort, MissingTrustedData, TooFewClients
from .data.datasets import Dataset
from .evaluation import evaluate
from .experiment import Experiment, to_table, to_toml
from .meter import Meter
from .metrics import summarize
from .models import MODELS
from .ops import fraction_of
from .options import ConfigError
from .randomness import derive, generator
from .records import NotARun, RoundRecord, complete_lines, read_run
from .simulation import Round, World, simulate
from .task import Task


class ResumedElsewhere(RuntimeWarning):
    """A run goes on with other versions or on another device than it began: its bits may differ."""


class NeverReached(UserWarning):
    """A schedule whose attack or defense never starts."""


class RunInUse(RuntimeError):
    """Another process is writing to this run."""


def choose_device(name: str = "auto") -> torch.device:
    """The device to train on, set up so that the same seed gives the same bits."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):  # others lack float64, which the rules need
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}")
    if device.type == "cuda":
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device {name} was asked for, but torch finds {torch.cuda.device_count()} CUDA GPUs here"
            )
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False  # TF32 keeps ten bits: too few for the same verdicts as on a CPU
    return device


def build_world(cell: Experiment, dataset: Dataset, device: torch.device) -> World:
    """Who owns what, who lies, and what they train: decided by the seed alone."""
    (seed,) = cell.seeds
    settings = dict(cell.model)
    build = lookup(MODELS, settings.pop("name"), "model")
    shape = tuple(dataset.train_images.shape[1:])
    with torch.random.fork_rng([]):
        torch.manual_seed(derive(seed, "model"))
        try:
            model = build(shape=shape, n_classes=dataset.n_classes, **settings)
        except (ValueError, RuntimeError, TypeError) as error:
            raise ConfigError(f"model does not fit dataset {dataset.name}: {error}") from error
    malicious = torch.zeros(cell.data.clients, dtype=torch.bool)
    n_malicious = fraction_of(cell.data.malicious, cell.data.clients)
    malicious[torch.randperm(cell.data.clients, generator=generator(seed, "identities"))[:n_malicious]] = True
    try:
        partition = cell.data.partition(
            dataset.train_labels, dataset.n_classes, cell.data.clients, derive(seed, "partition")
        )
    except ValueError as error:
        raise ConfigError(f"data.partition: {error}") from error
    return World(
        task=Task.of(model.to(device), mean=dataset.mean, std=dataset.std),
        images=dataset.train_images.to(device),
        labels=dataset.train_labels.to(device),
        partition=partition,
        malicious=malicious,
        n_classes=dataset.n_classes,
        trainer=cell.training.trainer,
    )


def rehearse(experiment: Experiment, dataset: Dataset) -> None:
    """Find what only the data reveals, before the first of many runs: an unknown layer, a class that does not exist."""
    cell = next(experiment.cells())
    world = build_world(cell, dataset, torch.device("cpu"))
    clients = torch.arange(cell.training.sampled)
    updates = torch.zeros(cell.training.sampled, world.task.layout.size)
    cohort = Cohort.of(updates, world.task.initial(), world.task.layout, clients)
    images, labels = world.batches(clients[:1], 1, 1, generator(0))
    for attack in experiment.attacks:
        with _named(f"attack {attack.label}"):
            attack.part.poison(images, labels, world.n_classes, generator(0))
            attack.part.forge(cohort, clients < 1, attack.part.init())
        if attack.part != Attack() and experiment.schedule.attack_start >= experiment.training.rounds:
            warnings.warn("the attack starts after the last round", NeverReached, stacklevel=2)
    for defense in experiment.defenses:
        with _named(f"defense {defense.label}"):
            defense.part(cohort, defense.part.init())
    if experiment.schedule.defense_start >= experiment.training.rounds:
        warnings.warn("the defense starts after the last round", NeverReached, stacklevel=2)


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TooFewClients, MissingTrustedData) as error:
        raise ConfigError(f"{what}: {error}") from error


def is_finished(folder: Path) -> bool:
    """Whether this run has nothing left to do."""
    try:
        return read_run(folder).summary is not None
    except NotARun:
        return False


def run(
    cell: Experiment, folder: Path, dataset: Dataset, device: torch.device, *, checkpoint_seconds: float = 5.0
) -> Generator[RoundRecord, None, None]:
    """Run one cell, yielding each round as it is recorded: all of them, those that are left, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if not is_finished(folder):
            yield from _run(cell, folder, dataset, device, checkpoint_seconds)


def _run(
    cell: Experiment, folder: Path, dataset: Dataset, device: torch.device, checkpoint_seconds: float
) -> Generator[RoundRecord, None, None]:
    (seed,), (attack,), (defense,) = cell.seeds, cell.attacks, cell.defenses
    world = build_world(cell, dataset, device)
    records, checkpoint = folder / "records.jsonl", folder / "checkpoint.safetensors"
    header = _header(cell, dataset, world, device)
    now = None
    if checkpoint.exists():
        now = load_snapshot(checkpoint, (defense.part.init(), attack.part.init()), device)
        _warn_if_elsewhere(records, header)
    _rewind(records, header, now.next_round if now else 0)
    write_atomically(folder / "experiment.toml", to_toml(cell).encode())
    training = cell.training
    rounds = simulate(
        world, attack.part, defense.part, rounds=training.rounds, sampled=training.sampled, batch=training.batch,
        local_steps=training.local_steps, seed=seed, schedule=cell.schedule, resume=now,
    )  # fmt: skip
    test_images, test_labels = dataset.test_images.to(device), dataset.test_labels.to(device)
    saved_round, saved_time = now.next_round if now else 0, time.monotonic()
    with records.open("ab") as file:
        try:
            for round_ in rounds:
                record = record_of(round_)
                if _is_evaluated(round_.number, cell):
                    meter = Meter(device)
                    with meter("evaluate"):
                        measured = evaluate(
                            world.task, round_.after.params, test_images, test_labels, attack.part, world.n_classes
                        )
                    record = replace(
                        record, accuracy=measured.accuracy, loss=measured.loss, attack_success=measured.attack_success,
                        seconds={**record.seconds, **meter.seconds},
                        peak_memory={**record.peak_memory, **meter.peak_memory},
                    )  # fmt: skip
                _append(file, record.to_json())
                now = round_.after  # only now: a record is never behind its checkpoint
                if time.monotonic() - saved_time >= checkpoint_seconds:
                    _sync(file)
                    save_snapshot(checkpoint, now)
                    saved_round, saved_time = now.next_round, time.monotonic()
                yield record
        finally:  # Ctrl-C, or a caller who stops listening: keep what was done
            if now is not None and now.next_round > saved_round:
                _sync(file)
                save_snapshot(checkpoint, now)
        _append(file, {"summary": summarize(read_run(folder).rounds)})
        _sync(file)


def record_of(round_: Round) -> RoundRecord:
    """A round in plain numbers."""
    return RoundRecord(
        round=round_.number,
        clients=tuple(round_.clients.tolist()),
        weights=tuple(round_.verdict.weights.tolist()),
        malicious=tuple(round_.malicious.tolist()),
        defended=round_.defended,
        skipped=round_.verdict.skipped,
        scores={name: tuple(_or_none(scores)) for name, scores in round_.verdict.evidence.items()},
        seconds=round_.seconds,
        peak_memory=round_.peak_memory,
    )


def _or_none(scores: torch.Tensor) -> list[float | None]:
    return [None if score != score else score for score in scores.tolist()]


def _is_evaluated(number: int, cell: Experiment) -> bool:
    last, before_attack = cell.training.rounds - 1, cell.schedule.attack_start - 1
    return (number + 1) % cell.training.evaluate_every == 0 or number in (last, before_attack)


def _header(cell: Experiment, dataset: Dataset, world: World, device: torch.device) -> dict[str, Any]:
    (seed,), (attack,), (defense,) = cell.seeds, cell.attacks, cell.defenses
    labels = dataset.train_labels
    counts = [torch.bincount(labels[own], minlength=dataset.n_classes).tolist() for own in world.partition]
    return {
        "experiment": to_table(cell),
        "attack": attack.label,
        "defense": defense.label,
        "seed": seed,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu ({torch.get_num_threads()} threads)",
        "versions": {
            "cosdefense": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "dataset": dataset.note or dataset.name,
        "classes": list(dataset.classes),
        "malicious_clients": world.malicious.nonzero().flatten().tolist(),
        "split": counts,
    }


def _warn_if_elsewhere(records: Path, header: Mapping[str, Any]) -> None:
    before = (complete_lines(records) if records.exists() else [])[:1] or [{}]
    for key in ("device", "versions", "dataset"):
        if key in before[0] and before[0][key] != header[key]:
            warnings.warn(
                f"{records.parent.name} began with {key} {before[0][key]} and goes on with {header[key]}: "
                "its bits may differ from an uninterrupted run's",
                ResumedElsewhere,
                stacklevel=4,
            )


def _rewind(records: Path, header: Mapping[str, Any], next_round: int) -> None:
    """Drop what the checkpoint does not know of: rounds after it, a torn last line."""
    lines = complete_lines(records) if records.exists() and next_round else []
    kept = [line for line in lines if line.get("round", next_round) < next_round]
    if len(kept) != next_round:
        raise NotARun(f"{records} holds {len(kept)} of the {next_round} rounds in the checkpoint; delete the folder")
    first = lines[0] if lines else dict(header)
    write_atomically(records, b"".join(_encoded(line) for line in (first, *kept)))


def _append(file: BinaryIO, line: Mapping[str, Any]) -> None:
    file.write(_encoded(line))
    file.flush()


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two processes must not write one run. The lock goes with the process, however it ends."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunInUse(f"{folder} is being written by another process") from error
        yield
