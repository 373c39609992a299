"""Trains all clients of a round: in threads on a CPU, by CUDA graphs on a GPU."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from .cuda_graphs import train_with_graphs
from .local_sgd import LocalSGD
from .optimizers import LocalOptimizer
from .stacked_clients import can_stack, train_stacked
from .task import Task
from .threads import map_in_threads


def train_clients(
    task: Task,
    trainer: LocalSGD,
    params: Float[Tensor, " d"],
    images: Shaped[Tensor, "n steps b *shape"],
    labels: Shaped[Tensor, "n steps b *targets"],
) -> Float[Tensor, "n d"]:
    """Compute the updates of all clients of a round, each starting from `params`.

    On a CPU clients train independently, several at a time. On a GPU one step of simple layers is one computation for
    all of them; otherwise one client's training is recorded and replayed for each; with hooks, which may do anything,
    all clients are one batched computation. All of them give the same numbers, within rounding. Optimizers other than
    SGD are torch's own, which train one client at a time.
    """
    if params.device.type == "cpu" or isinstance(trainer, LocalOptimizer):
        return train_one_by_one(task, trainer, params, images, labels)
    if trainer.hooks:
        return train_batched(task, trainer, params, images, labels)
    recorded = task.twin or task
    if can_stack(recorded, trainer, images.shape[1]):
        return train_stacked(recorded, trainer, params, to_channels_last(images, 3), labels)
    train = partial(trainer, recorded.functional_form)
    return train_with_graphs(recorded, trainer, train, params, to_channels_last(images, 3), labels)


def train_batched(task: Task, trainer: LocalSGD, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Train all clients as one computation, by `torch.func.vmap`."""
    # Every client gets its own row of parameters: in-place buffer updates need one copy each.
    starts = params.expand(len(images), -1)
    return torch.func.vmap(partial(trainer, task.functional_form), randomness="different")(starts, images, labels)


def train_one_by_one(task: Task, trainer: LocalSGD, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Train each client independently, several at a time in threads."""
    updates = params.new_empty(len(images), len(params))

    def train(task: Task, i: int) -> None:
        updates[i] = trainer(task, params, to_channels_last(images[i], 2), labels[i])

    map_in_threads(task, train, len(images), params.device)
    return updates


def to_channels_last(images: Tensor, n_leading: int = 1) -> Tensor:
    """Rearrange images in memory the way convolutions are fastest; the values stay the same, and other inputs as well.

    The first `n_leading` dimensions are those of clients, steps and batches.
    """
    if images.ndim != n_leading + 3 or not images.is_floating_point():
        return images
    flat = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
    return flat.view(images.shape)
