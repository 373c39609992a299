"""How one client trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..core import ClientHook, Layout
from .task import Task


@dataclass(frozen=True)
class LocalSGD:
    """Stochastic gradient descent as `torch.optim.SGD` does it, without momentum from earlier rounds."""

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    ascend: bool = False  # maximize the loss instead, as some attacks do
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
        images: Shaped[Tensor, "steps b *shape"],
        labels: Shaped[Tensor, "steps b *targets"],
    ) -> Float[Tensor, " d"]:
        """Compute one client's update: one step per leading index of `images` and `labels`."""
        params, velocity, previous = start, None, None
        for batch, targets in zip(images, labels, strict=True):
            for hook in self.hooks:
                batch, targets = hook.batch(partial(task.loss, params), batch, targets)
            gradient, params = task.gradient(params, batch, targets)
            if self.ascend:
                gradient = -gradient
            # An option that is off is skipped: on a CPU each of these lines is a pass over the whole model.
            velocity = gradient if velocity is None or not self.momentum else self.momentum * velocity + gradient
            if self.weight_decay:
                velocity = velocity + self._decay(task.layout, params) * params
            params = params - self.lr * velocity
            for hook in self.hooks:
                params = hook.step(params, gradient, previous, task.layout, self.lr)
            previous = gradient
        return params - start

    def _decay(self, layout: Layout, params: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """The decay of every coordinate: weights decay, buffers do not."""
        return self.weight_decay * (torch.arange(len(params), device=params.device) < layout.n_trainable)
