"""Clients that train alone, never averaged: how alike do their models stay, layer by layer?

The paper's first figure, and the reason why CosDefense looks at the last layer. The paper speaks of weights; what a
server receives is how they changed. Both are compared, because they tell different stories: weights share the start
that all clients got, and that hides the last layer, which moves least.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ...catalog.options import ConfigError
from ...core import Layout, derive, generator, seeded
from ...data.datasets import Dataset
from ...ops import cosines
from ...runs.experiment import Experiment
from ...runs.records import RoundRecord
from ...simulation.loop import Snapshot
from ...simulation.profiling import Profiler
from ...simulation.world import World
from ...training.executor import train_clients


def alone(
    cell: Experiment, world: World, dataset: Dataset, resume: Snapshot | None
) -> Iterator[tuple[RoundRecord, Snapshot]]:
    """A "round" is some local steps of every client; scores are the likenesses of their layers' weights and changes."""
    (seed,), (attack,), (defense,), training = cell.seeds, cell.attacks, cell.defenses, cell.training
    device, n = world.labels.device, len(world.partition)
    if n < 2:
        raise ConfigError(f"data.clients must be at least 2 to be compared with each other, got {n}")
    start = world.task.initial().to(device)
    now = resume or Snapshot(0, start.repeat(n), defense.part.init(), attack.part.init())  # one model behind the other
    for number in range(now.next_round, training.rounds):
        meter, models = Profiler(device), now.params.view(n, -1).clone()
        images, labels = world.batches(
            torch.arange(n), training.local_steps, training.batch, generator(seed, "batches", number)
        )
        with meter("train"), seeded(derive(seed, "training", number), device):
            for i, model in enumerate(models):
                one = slice(i, i + 1)
                models[i] = model + train_clients(world.task, world.trainer, model, images[one], labels[one])[0]
        likenesses = {
            f"{what}: {layer}": tuple(found.tolist())
            for what, rows in (("weights", models), ("changes", models - start))
            for layer, found in layer_likeness(rows, world.task.layout)
        }
        now = Snapshot(number + 1, models.flatten(), now.defense_state, now.attack_state)
        yield RoundRecord(number, tuple(range(n)), (1.0,) * n, scores=likenesses, seconds=meter.seconds), now


def layer_likeness(models: Float[Tensor, "n d"], layout: Layout) -> Iterator[tuple[str, Float[Tensor, " n"]]]:
    """Every client's mean cosine with the others, for every weight matrix from the input to the output."""
    for name, shape in layout.shapes:
        if name in layout.trainable and len(shape) > 1:
            alike = cosines(models[:, layout.slices[name]])
            yield name, (alike.sum(dim=1) - alike.diagonal()) / (len(models) - 1)
