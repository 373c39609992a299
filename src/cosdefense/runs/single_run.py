"""Run one cell of an experiment: record it, checkpoint it, resume it where it stopped."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .. import __version__
from ..core import ClientHook
from ..core.experiment_folder import reading_from
from ..data import Dataset
from ..hooks import AdversarialTraining
from ..ops import read_together
from ..simulation.evaluation import evaluate
from ..simulation.loop import Round, Snapshot, simulate
from ..simulation.profiling import Profiler
from ..simulation.sending import empty_memories
from ..simulation.world import World
from ..training.metrics import Metric
from .checkpoint import DamagedCheckpoint, checkpoint_of, snapshot_of
from .device import reproducible
from .experiment import Experiment, to_table, to_toml
from .files import write_atomically
from .prepare import build_world
from .records import RoundRecord
from .run_folder import RunFolder


def simulate_cell(
    cell: Experiment, world: World, dataset: Dataset, resume: Snapshot | None
) -> Iterator[tuple[RoundRecord, Snapshot]]:
    """The rounds of a federation: each as a record, evaluated where due, and the state after it."""
    (seed,), (attack,), (defense,), training = cell.seeds, cell.attacks, cell.defenses, cell.training
    device = world.targets.device
    test = replace(dataset, test_inputs=dataset.test_inputs.to(device), test_targets=dataset.test_targets.to(device))
    rounds = simulate(
        world, attack.part, defense.part, rounds=training.rounds, sampled=training.sampled, batch=training.batch,
        local_steps=training.local_steps, local_epochs=training.local_epochs,
        weighting=training.weighting, seed=seed, schedule=cell.schedule, resume=resume,
        max_update_memory=None if training.max_update_memory is None else round(training.max_update_memory * 1e9),
    )  # fmt: skip
    with reading_from(cell.source):  # which may define metrics
        metrics = training.list_metrics(has_classes=bool(dataset.classes))
    for round_ in rounds:
        record = record_of(round_)
        if _should_evaluate(round_.number, cell):
            record = _evaluate(record, round_, cell, world, test, metrics)
        yield record, round_.after


def run(
    cell: Experiment,
    folder: Path,
    dataset: Dataset,
    device: torch.device,
    *,
    notes: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 5.0,
    on_start: Callable[[], None] | None = None,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> bool:
    """Run one cell to its end: all rounds, those that are left, or none. Returns whether it was not finished before.

    `on_start` is called before the first round, if there is one, and `on_round` after each round is recorded. Whatever
    ends the run early (Ctrl-C, an error, also one that `on_round` raises), the last recorded round is saved, and the
    next call resumes after it. `notes` go into the header of the records.
    """
    run_folder = RunFolder(folder)
    with run_folder.lock(), reproducible(tf32=cell.training.tf32):
        if run_folder.is_finished:
            return False
        if on_start:
            on_start()
        world = build_world(cell, dataset, device)
        start = _resume_or_begin(cell, run_folder, {**header_of(cell, dataset, world), **(notes or {})}, world)
        write_atomically(folder / "experiment.toml", to_toml(cell).encode())
        with closing(Recorder(run_folder, start, checkpoint_seconds)) as recorder:
            for record, after in simulate_cell(cell, world, dataset, start):
                recorder.write(record, after)
                if on_round:
                    on_round(record)
        run_folder.finish()
    return True


def _resume_or_begin(cell: Experiment, folder: RunFolder, header: Mapping[str, Any], world: World) -> Snapshot | None:
    """Where the checkpoint stands, or None for a new run."""
    if not folder.has_checkpoint:
        folder.begin(header)
        return None
    (attack,), (defense,), initial = cell.attacks, cell.defenses, world.task.initial()
    state = defense.part.init()
    informed, _ = attack.part.with_defense(defense.part, state, attack.part.init())  # as the simulator will
    checkpoint = folder.load(initial.device)
    snapshot = snapshot_of(checkpoint, (state, informed.init(), empty_memories(defense.part.hooks)))
    if (snapshot.params.shape, snapshot.params.dtype) != (initial.shape, initial.dtype):
        needed, got = (f"{list(t.shape)} {t.dtype}" for t in (initial, snapshot.params))
        raise DamagedCheckpoint(f"{folder.checkpoint} holds another model: needs {needed}, got {got}")
    folder.warn_if_elsewhere(header)
    folder.rewind(checkpoint)
    return snapshot


class Recorder:
    """Writes rounds down, and a checkpoint every few seconds."""

    def __init__(self, folder: RunFolder, start: Snapshot | None, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._last = start
        self._saved, self._saved_at = start, time.monotonic()

    def write(self, record: RoundRecord, after: Snapshot) -> None:
        self._folder.append(record)
        self._last = after  # only now: a checkpoint must not be ahead of the records
        if time.monotonic() - self._saved_at >= self._seconds:
            self.close()

    def close(self) -> None:
        """Checkpoint the last recorded round, if that is not done yet."""
        if self._last is not None and self._last is not self._saved:
            self._folder.save(checkpoint_of(self._last))
            self._saved, self._saved_at = self._last, time.monotonic()


def _evaluate(
    record: RoundRecord, round_: Round, cell: Experiment, world: World, test: Dataset, metrics: Sequence[Metric]
) -> RoundRecord:
    (attack,), profiler = cell.attacks, Profiler(world.targets.device)
    with profiler.measure("evaluate"):
        result = evaluate(
            world.task, round_.after.params, test.test_inputs, test.test_targets,
            attack.part.with_state(round_.after.attack_state), world.n_classes,
            adversary=_adversary(cell), batch_statistics=cell.training.batch_statistics, metrics=metrics,
            owners=find_test_owners(test, world), n_clients=len(world.partition),
        )  # fmt: skip
    return replace(
        record,
        **asdict(result) | ({} if test.classes else {"accuracy": None}),
        seconds={**record.seconds, **profiler.seconds},
        peak_memory={**record.peak_memory, **profiler.peak_memory},
    )


def find_test_owners(dataset: Dataset, world: World) -> Int[Tensor, " m"] | None:
    """The client of every test sample, −1 for clients that do not take part; None: the data do not say."""
    if dataset.test_clients is None or not world.client_ids:
        return None
    clients = torch.full((len(dataset.clients),), -1)
    clients[list(world.client_ids)] = torch.arange(len(world.client_ids))
    return clients[dataset.test_clients.cpu()]


def _adversary(cell: Experiment) -> ClientHook | None:
    """What moves the test images: as far as the experiment says, or as the defense trains for; always in ten steps."""
    (defense,) = cell.defenses
    trained_for = [hook.epsilon for hook in defense.part.hooks if isinstance(hook, AdversarialTraining)]
    epsilon = cell.training.adversarial or next(iter(trained_for), None)
    return None if epsilon is None else AdversarialTraining(epsilon)


def record_of(round_: Round) -> RoundRecord:
    """A round in plain numbers."""
    clients, malicious = read_together([round_.clients, round_.malicious])
    return RoundRecord.of_verdict(
        round_.number,
        clients,
        round_.verdict,
        malicious=tuple(malicious),
        defended=round_.defended,
        seconds=round_.seconds,
        peak_memory=round_.peak_memory,
    )


def _should_evaluate(number: int, cell: Experiment) -> bool:
    last, before_attack = cell.training.rounds - 1, cell.schedule.attack_start - 1
    last_attacked = None if cell.schedule.attack_stop is None else cell.schedule.attack_stop - 1
    return (number + 1) % cell.training.evaluate_every == 0 or number in (last, before_attack, last_attacked)


def header_of(cell: Experiment, dataset: Dataset, world: World) -> dict[str, Any]:
    """The first line of the records: all that decided the numbers."""
    (seed,), (attack,), (defense,) = cell.seeds, cell.attacks, cell.defenses
    device = world.targets.device
    return {
        "experiment": to_table(cell),
        "attack": attack.label,
        "defense": defense.label,
        "needs": sorted(defense.part.needs),  # what it takes of a deployment
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
        "classes": list(dataset.classes) if dataset.train_targets.ndim == 1 else [],
        "malicious_clients": world.malicious.nonzero().flatten().tolist(),
        **_describe_metrics(cell, dataset),
        "split": _count_samples(dataset, world),
        **({"clients": [dataset.clients[i] for i in world.client_ids]} if world.client_ids else {}),
    }


def _describe_metrics(cell: Experiment, dataset: Dataset) -> dict[str, Any]:
    """What is measured beside accuracy and loss, and whether more of it is better."""
    with reading_from(cell.source):
        metrics = cell.training.list_metrics(has_classes=bool(dataset.classes))
    return {"metrics": {metric.name: metric.higher_is_better for metric in metrics}} if metrics else {}


def _count_samples(dataset: Dataset, world: World) -> list[list[int]]:
    """Of each client: how many samples of each class; or how many, where a sample has no class."""
    labels = dataset.train_targets.cpu()
    if not dataset.classes or labels.ndim != 1:
        return [[len(own)] for own in world.partition]
    return [torch.bincount(labels[own], minlength=dataset.n_classes).tolist() for own in world.partition]
