"""Figure 1 of the paper: clients train without averaging; how similar do their layers stay?

This is why CosDefense looks at the last layer. The paper compares weights. A server receives how they changed. Both are
compared here, because they disagree: all clients start from the same weights, and that hides how much the last layer
differs, which moves least.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...catalog.options import ConfigError
from ...core import Layout, derive, generator, use_seed
from ...data import Dataset
from ...ops import cosines
from ...runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from ...runs.device import reproducible
from ...runs.experiment import Experiment
from ...runs.files import write_atomically
from ...runs.packed_records import read_lines, write_lines
from ...runs.prepare import build_world
from ...runs.run_folder import RunFolder
from ...runs.single_run import header_of
from ...simulation.world import World
from ...training.executor import train_clients

RECORD = "drift.json"  # of a finished run, in its folder
PACK, FORMAT, VERSION = "drift.jsonl.gz", "cosdefense drift", 1  # of all published runs

Similarities = dict[str, list[float]]  # by tensor: each client's mean cosine with the others


@dataclass(frozen=True)
class Measurement:
    """How similar the clients are after so many iterations."""

    iteration: int
    weights: Similarities
    changes: Similarities  # since the common start


@dataclass(frozen=True)
class DriftRun:
    """What was measured with one seed."""

    header: Mapping[str, Any]  # keys: experiment, seed, device, versions …
    measurements: tuple[Measurement, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"header": self.header, "measurements": list(map(asdict, self.measurements))}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> DriftRun:
        return cls(line["header"], tuple(Measurement(**item) for item in line["measurements"]))


def run_drift(
    experiment: Experiment,
    folder: Path,
    dataset: Dataset,
    device: torch.device,
    *,
    notes: Mapping[str, Any] | None = None,
    on_measurement: Callable[[int], None] | None = None,
    checkpoint_seconds: float = 5.0,
) -> DriftRun:
    """Run one seed to its end, from where the folder stopped. `on_measurement` gets the number of measurements so far.

    Whatever interrupts it, the measurements so far are saved. `notes` go into the header.
    """
    record, checkpoint = folder / RECORD, folder / "checkpoint.safetensors"
    with RunFolder(folder).lock(), reproducible(tf32=experiment.training.tf32):
        if record.exists():
            return DriftRun.from_json(json.loads(record.read_text(encoding="utf-8")))
        world = build_world(experiment, dataset, device)
        if checkpoint.exists():
            saved = read_checkpoint(checkpoint, device)
            run, models = DriftRun.from_json(saved.metadata), saved.tensors["models"]
        else:
            run = DriftRun({**_header(experiment, dataset, world), **(notes or {})})
            models = _initial_models(world)
        saved_at = time.monotonic()

        def save() -> None:
            write_checkpoint(checkpoint, Checkpoint(len(run.measurements), {"models": models}, run.to_json()))

        try:
            for measurement, after in measure_drift(experiment, world, models, len(run.measurements)):
                run, models = replace(run, measurements=(*run.measurements, measurement)), after
                if on_measurement:
                    on_measurement(len(run.measurements))
                if time.monotonic() - saved_at >= checkpoint_seconds:
                    save()
                    saved_at = time.monotonic()
        except BaseException:
            save()
            raise
        write_atomically(record, json.dumps(run.to_json(), separators=(",", ":")).encode())
        checkpoint.unlink(missing_ok=True)
        return run


def measure_drift(
    experiment: Experiment, world: World, models: Float[Tensor, "n d"], n_done: int = 0
) -> Iterator[tuple[Measurement, Float[Tensor, "n d"]]]:
    """Train every client by `local_steps` iterations, compare, and so on for `rounds` times; the models after each."""
    (seed,), training, n = experiment.seeds, experiment.training, len(models)
    if n < 2:
        raise ConfigError(f"data.clients must be at least 2 to be compared with each other, got {n}")
    start, device = world.task.initial().to(models.device), models.device
    for number in range(n_done, training.rounds):
        models = models.clone()
        images, labels = world.draw_batches(
            torch.arange(n), training.local_steps, training.batch, generator(seed, "batches", number)
        )
        with use_seed(derive(seed, "training", number), device):
            for i, model in enumerate(models):
                one = slice(i, i + 1)
                models[i] = model + train_clients(world.task, world.trainer, model, images[one], labels[one])[0]
        weights, changes = (layer_similarities(rows, world.task.layout) for rows in (models, models - start))
        yield Measurement((number + 1) * training.local_steps, weights, changes), models


def layer_similarities(models: Float[Tensor, "n d"], layout: Layout) -> Similarities:
    """Every client's mean cosine with the others, for every weight matrix from the input to the output."""
    similarities = {}
    for name, shape in layout.shapes:
        if name in layout.trainable and len(shape) > 1:
            pairs = cosines(models[:, layout.slices[name]])
            means = (pairs.sum(dim=1) - pairs.diagonal()) / (len(models) - 1)
            similarities[name] = [float(f"{mean:.6g}") for mean in means.tolist()]
    return similarities


def read_drift(experiments: Sequence[Experiment], folder: Path) -> list[DriftRun]:
    """Those of the planned runs that are finished: each from its own folder, or by its seed from the pack."""
    lines = read_lines(folder / PACK, FORMAT, VERSION) if (folder / PACK).exists() else []
    packed = {line["header"]["seed"]: line for line in lines}
    runs = []
    for experiment in experiments:
        (seed,), path = experiment.seeds, experiment.folder(folder) / RECORD
        if path.exists():
            runs.append(DriftRun.from_json(json.loads(path.read_text(encoding="utf-8"))))
        elif seed in packed:
            runs.append(DriftRun.from_json(packed[seed]))
    return runs


def write_drift(path: Path, runs: Sequence[DriftRun]) -> None:
    """All runs in one compressed file."""
    write_lines(path, FORMAT, VERSION, [run.to_json() for run in runs])


def _header(experiment: Experiment, dataset: Dataset, world: World) -> dict[str, Any]:
    header = header_of(experiment, dataset, world)
    return {key: header[key] for key in ("experiment", "seed", "device", "versions", "dataset")}


def _initial_models(world: World) -> Float[Tensor, "n d"]:
    return world.task.initial().to(world.targets.device).repeat(len(world.partition), 1)
