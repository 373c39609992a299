"""How clients train: written for one of them, run for all of a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .defense import ClientHook
from .layout import Layout
from .replay import replayed
from .side_by_side import side_by_side
from .task import Task


@dataclass(frozen=True)
class LocalSGD:
    """Stochastic gradient descent as `torch.optim.SGD` does it, starting afresh every round."""

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    ascend: bool = False  # climb the loss instead, as some attackers do
    hooks: tuple[ClientHook, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")

    def __call__(
        self,
        task: Task,
        start: Float[Tensor, " d"],
        images: Float[Tensor, "steps b *shape"],
        labels: Int[Tensor, "steps b"],
    ) -> Float[Tensor, " d"]:
        """One client's update after one step per leading index of `images` and `labels`."""
        params, velocity, previous = start, None, None
        for batch, targets in zip(images, labels, strict=True):
            for hook in self.hooks:
                batch, targets = hook.batch(partial(task.loss, params), batch, targets)
            gradient, params = task.gradient(params, batch, targets)
            if self.ascend:
                gradient = -gradient
            # What is off costs nothing: on a CPU each of these lines is a pass over the whole model.
            velocity = gradient if velocity is None or not self.momentum else self.momentum * velocity + gradient
            if self.weight_decay:
                velocity = velocity + self._decay(task.layout, params) * params
            params = params - self.lr * velocity
            for hook in self.hooks:
                params = hook.step(params, gradient, previous, task.layout, self.lr)
            previous = gradient
        return params - start

    def _decay(self, layout: Layout, params: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """Weights decay, buffers do not."""
        return self.weight_decay * (torch.arange(len(params), device=params.device) < layout.n_trainable)


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
    return replayed(task, trainer, partial(trainer, task), params, channels_last(images), labels)


def _train_batched(task: Task, trainer: LocalSGD, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    # The start is given to every client as its own row: in-place buffer updates need one copy each.
    starts = params.expand(len(images), -1)
    return torch.func.vmap(partial(trainer, task), randomness="different")(starts, images, labels)


def _train_singly(task: Task, trainer: LocalSGD, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    updates = params.new_empty(len(images), len(params))

    def train(task: Task, i: int) -> None:
        updates[i] = trainer(task, params, channels_last(images[i]), labels[i])

    side_by_side(task, train, len(images), params.device)
    return updates


def channels_last(images: Tensor) -> Tensor:
    """The same images, laid out in memory as convolutions like them."""
    if images.ndim < 4:
        return images
    flat = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
    return flat.view(images.shape)
