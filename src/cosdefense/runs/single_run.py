"""Run one cell of an experiment: record it, checkpoint it, go on where it stopped."""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..core import ClientHook
from ..data.datasets import Dataset
from ..hooks import AdversarialTraining
from ..simulation.evaluation import evaluate
from ..simulation.loop import Round, Snapshot, simulate
from ..simulation.profiling import Profiler
from ..simulation.world import World
from .checkpoint import write_atomically
from .experiment import Experiment, to_table, to_toml
from .prepare import build_world
from .records import RoundRecord
from .run_folder import Journal, is_finished, only_writer

# What happens round by round, going on from a snapshot: records, and where each leaves everything.
Play = Callable[[Experiment, World, Dataset, Snapshot | None], Iterator[tuple[RoundRecord, Snapshot]]]


def federated(
    cell: Experiment, world: World, dataset: Dataset, resume: Snapshot | None
) -> Iterator[tuple[RoundRecord, Snapshot]]:
    """A federation, evaluated now and then."""
    (seed,), (attack,), (defense,), training = cell.seeds, cell.attacks, cell.defenses, cell.training
    device = world.labels.device
    test = replace(dataset, test_images=dataset.test_images.to(device), test_labels=dataset.test_labels.to(device))
    rounds = simulate(
        world, attack.part, defense.part, rounds=training.rounds, sampled=training.sampled, batch=training.batch,
        local_steps=training.local_steps, seed=seed, schedule=cell.schedule, resume=resume,
        max_update_memory=None if training.max_update_memory is None else round(training.max_update_memory * 1e9),
    )  # fmt: skip
    for round_ in rounds:
        record = record_of(round_)
        if _is_evaluated(round_.number, cell):
            record = _evaluated(record, round_, cell, world, test)
        yield record, round_.after


def run(
    cell: Experiment,
    folder: Path,
    dataset: Dataset,
    device: torch.device,
    *,
    play: Play = federated,
    notes: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 5.0,
) -> Generator[RoundRecord, None, None]:
    """Run one cell, yielding each round as it is recorded: all of them, those that are left, or none.

    Notes go into the header, for those who ask later where the numbers come from.
    """
    with only_writer(folder):
        if not is_finished(folder):
            yield from _run(cell, folder, dataset, device, play, notes or {}, checkpoint_seconds)


def _run(
    cell: Experiment, folder: Path, dataset: Dataset, device: torch.device, play: Play, notes: Mapping[str, Any],
    checkpoint_seconds: float,
) -> Generator[RoundRecord, None, None]:  # fmt: skip
    (attack,), (defense,) = cell.attacks, cell.defenses
    torch.backends.cudnn.allow_tf32 = cell.training.tf32
    world = build_world(cell, dataset, device)
    memory = defense.part.init()
    informed, _ = attack.part.with_defense(defense.part, memory, attack.part.init())  # as the simulator will
    header, like = {**header_of(cell, dataset, world), **notes}, (memory, informed.init())
    with closing(Journal(folder, header, like, device, checkpoint_seconds)) as journal:
        write_atomically(folder / "experiment.toml", to_toml(cell).encode())
        for record, after in play(cell, world, dataset, journal.snapshot):
            journal.write(record, after)
            yield record
        journal.finish()


def _evaluated(record: RoundRecord, round_: Round, cell: Experiment, world: World, test: Dataset) -> RoundRecord:
    (attack,), meter = cell.attacks, Profiler(world.labels.device)
    with meter("evaluate"):
        found = evaluate(
            world.task, round_.after.params, test.test_images, test.test_labels, attack.part, world.n_classes,
            adversary=_adversary(cell), batch_statistics=cell.training.batch_statistics,
        )  # fmt: skip
    return replace(
        record,
        **asdict(found),
        seconds={**record.seconds, **meter.seconds},
        peak_memory={**record.peak_memory, **meter.peak_memory},
    )


def _adversary(cell: Experiment) -> ClientHook | None:
    """Who moves the test images: as far as the experiment says, or as the defense trains for; always in ten steps."""
    (defense,) = cell.defenses
    trained_for = [hook.epsilon for hook in defense.part.hooks if isinstance(hook, AdversarialTraining)]
    epsilon = cell.training.adversarial or next(iter(trained_for), None)
    return None if epsilon is None else AdversarialTraining(epsilon)


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
        points={name: tuple(_pairs(points)) for name, points in round_.verdict.points.items()},
        seconds=round_.seconds,
        peak_memory=round_.peak_memory,
    )


def _or_none(scores: torch.Tensor) -> list[float | None]:
    return [None if score != score else score for score in scores.tolist()]


def _pairs(points: torch.Tensor) -> list[tuple[float, float] | None]:
    return [None if x != x else (x, y) for x, y in points.tolist()]


def _is_evaluated(number: int, cell: Experiment) -> bool:
    last, before_attack = cell.training.rounds - 1, cell.schedule.attack_start - 1
    return (number + 1) % cell.training.evaluate_every == 0 or number in (last, before_attack)


def header_of(cell: Experiment, dataset: Dataset, world: World) -> dict[str, Any]:
    """The first line of the records: all that decided the numbers."""
    (seed,), (attack,), (defense,) = cell.seeds, cell.attacks, cell.defenses
    labels, device = dataset.train_labels, world.labels.device
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
