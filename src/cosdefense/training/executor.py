"""How clients train: written for one of them, run for all of a round."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .cuda_graphs import train_with_graphs
from .local_sgd import LocalSGD
from .task import Task
from .threads import map_in_threads


def train_clients(
    task: Task,
    trainer: LocalSGD,
    params: Float[Tensor, " d"],
    images: Float[Tensor, "n steps b *shape"],
    labels: Int[Tensor, "n steps b"],
) -> Float[Tensor, "n d"]:
    """The updates of all clients of a round, each starting from `params`.

    On a CPU each by itself, several at a time. On a GPU the training of one client is recorded and replayed for each
    of them; with hooks, which may do anything, all of them are one batched computation. All give the same numbers,
    within rounding.
    """
    if params.device.type == "cpu":
        return _train_singly(task, trainer, params, images, labels)
    if trainer.hooks:
        return _train_batched(task, trainer, params, images, labels)
    return train_with_graphs(task, trainer, partial(trainer, task), params, channels_last(images), labels)


def _train_batched(task: Task, trainer: LocalSGD, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    # The start is given to every client as its own row: in-place buffer updates need one copy each.
    starts = params.expand(len(images), -1)
    return torch.func.vmap(partial(trainer, task), randomness="different")(starts, images, labels)


def _train_singly(task: Task, trainer: LocalSGD, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    updates = params.new_empty(len(images), len(params))

    def train(task: Task, i: int) -> None:
        updates[i] = trainer(task, params, channels_last(images[i]), labels[i])

    map_in_threads(task, train, len(images), params.device)
    return updates


def channels_last(images: Tensor) -> Tensor:
    """The same images, laid out in memory as convolutions like them."""
    if images.ndim < 4:
        return images
    flat = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
    return flat.view(images.shape)
