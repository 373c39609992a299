"""Clients that train alone, never averaged: how alike do their models stay, layer by layer?

The paper's first figure, and the reason why CosDefense looks at the last layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from .client import train_clients
from .data.datasets import Dataset
from .experiment import Experiment
from .layout import Layout
from .meter import Meter
from .ops import cosines
from .options import ConfigError
from .randomness import derive, generator, seeded
from .records import RoundRecord
from .simulation import Snapshot, World


def alone(
    cell: Experiment, world: World, dataset: Dataset, resume: Snapshot | None
) -> Iterator[tuple[RoundRecord, Snapshot]]:
    """A "round" is some local steps of every client; the scores are the layers' likenesses."""
    (seed,), (attack,), (defense,), training = cell.seeds, cell.attacks, cell.defenses, cell.training
    device, n = world.labels.device, len(world.partition)
    if n < 2:
        raise ConfigError(f"data.clients must be at least 2 to be compared with each other, got {n}")
    start = world.task.initial().to(device).repeat(n)  # one model behind the other
    now = resume or Snapshot(0, start, defense.part.init(), attack.part.init())
    for number in range(now.next_round, training.rounds):
        meter, models = Meter(device), now.params.view(n, -1).clone()
        images, labels = world.batches(
            torch.arange(n), training.local_steps, training.batch, generator(seed, "batches", number)
        )
        with meter("train"), seeded(derive(seed, "training", number), device):
            for i, model in enumerate(models):
                one = slice(i, i + 1)
                models[i] = model + train_clients(world.task, world.trainer, model, images[one], labels[one])[0]
        likenesses = {layer: tuple(found.tolist()) for layer, found in layer_likeness(models, world.task.layout)}
        now = Snapshot(number + 1, models.flatten(), now.defense_state, now.attack_state)
        yield RoundRecord(number, tuple(range(n)), (1.0,) * n, scores=likenesses, seconds=meter.seconds), now


def layer_likeness(models: Float[Tensor, "n d"], layout: Layout) -> Iterator[tuple[str, Float[Tensor, " n"]]]:
    """Every client's mean cosine with the others, for every weight matrix from the input to the output."""
    for name, shape in layout.shapes:
        if name in layout.trainable and len(shape) > 1:
            alike = cosines(models[:, layout.slices[name]])
            yield name, (alike.sum(dim=1) - alike.diagonal()) / (len(models) - 1)
