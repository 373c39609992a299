"""Optimized trigger: a backdoor whose trigger is trained on the global model, so that little has to be poisoned.

Zhang, Jia, Chen, Lin, Wu. A3FL: Adversarially Adaptive Backdoor Attacks to Federated Learning. NeurIPS 2023.

A3FL's loss has a second term, with a weight of 0.01: that of a copy of the model which, before every pass, is trained
for five epochs to classify images with the trigger correctly, multiplied by the cosine of both models' gradients. It is
not built. `with_model` would have to hand over the loss as a function of the parameters, which the simulator has, and
every round of the attack would take 200 passes of five epochs of training. Another public implementation of A3FL leaves
the term out in effect. Without it the trigger is tuned to the present model, and should fade sooner once the attackers
are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import Loss, State
from ._trigger import TriggerAttack
from .attack import Attack

START = 0.5  # the pixels of the trigger before the first optimization


@dataclass(frozen=True)
class OptimizedTriggerState:
    """The trigger; empty before the first round of the attack."""

    trigger: Float[Tensor, "channels height width"]


@dataclass(frozen=True)
class OptimizedTrigger(TriggerAttack):
    """The backdoor with a trigger t that is improved in every round: t ← clip(t − rate · sign(∇ loss), 0, 1).

    The loss is that of the global model on the malicious clients' own images with the trigger, labeled `target`. All
    malicious clients share the trigger. It starts as a gray square.

    Args:
        size: The side of the trigger, a square, in pixels.
        offset: The first row and column of the trigger.
        passes: How many steps of optimization are made in a round. The authors make 200.
        rate: The size of a step. The authors' is 0.01, for normalized pixels.
    """

    needs_model: ClassVar[bool] = True

    fraction: float = 0.25
    size: int = 5
    offset: int = 2
    passes: int = 200
    rate: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("size", 1), ("offset", 0), ("passes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"OptimizedTrigger.{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"OptimizedTrigger.rate must be in (0, 1], got {self.rate}")

    def init(self) -> OptimizedTriggerState:
        return OptimizedTriggerState(torch.empty(0, 0, 0))

    def with_model(
        self, loss: Loss, images: Float[Tensor, "b channels height width"], labels: Int[Tensor, " b"], state: State
    ) -> tuple[Attack, State]:
        trigger = state.trigger
        if not trigger.numel():
            trigger = images.new_full((images.shape[1], self.size, self.size), START)
        wanted = torch.full_like(labels, self.target)
        for _ in range(self.passes):
            trigger = self._improve(loss, images, wanted, trigger)
        state = OptimizedTriggerState(trigger)
        return self.with_state(state), state

    def with_state(self, state: State) -> Attack:
        options = {field.name: getattr(self, field.name) for field in fields(OptimizedTrigger)}
        return FixedTrigger(**options, trigger=state.trigger) if state.trigger.numel() else self

    def add_trigger(
        self, images: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch channels height width"]:
        return self._insert(images, images.new_full((self.size, self.size), START))

    def _improve(
        self,
        loss: Loss,
        images: Float[Tensor, "b channels height width"],
        wanted: Int[Tensor, " b"],
        trigger: Float[Tensor, "channels size size"],
    ) -> Float[Tensor, "channels size size"]:
        with torch.enable_grad():
            leaf = trigger.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(self._insert(images, leaf), wanted), leaf)
        return step_against(gradient, trigger, self.rate)

    def _insert(
        self, images: Float[Tensor, "*batch channels height width"], trigger: Float[Tensor, "*channels size size"]
    ) -> Float[Tensor, "*batch channels height width"]:
        height, width = images.shape[-2:]
        end = self.offset + self.size
        if end > min(height, width):
            raise ValueError(f"OptimizedTrigger needs images of at least {end} × {end}, got {height} × {width}")
        images = images.clone()
        images[..., self.offset : end, self.offset : end] = trigger
        return images


def step_against(
    gradient: Float[Tensor, "*shape"], trigger: Float[Tensor, "*shape"], rate: float
) -> Float[Tensor, "*shape"]:
    """One step of signed gradient descent. Pixels stay in [0, 1]."""
    return (trigger - rate * gradient.sign()).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class FixedTrigger(OptimizedTrigger):
    """The same attack with the trigger that was found."""

    trigger: Float[Tensor, "channels size size"] | None = None

    def add_trigger(
        self, images: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch channels height width"]:
        assert self.trigger is not None
        return self._insert(images, self.trigger.to(images.dtype))
