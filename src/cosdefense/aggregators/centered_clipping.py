"""Centered clipping: move the previous aggregate towards the new updates, each clipped to a radius around it.

Karimireddy, He, Jaggi. Learning from History for Byzantine Robust Optimization. ICML 2021.
https://arxiv.org/abs/2012.10333
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State
from ..ops import clipped_mean, compute_dtype


@dataclass(frozen=True)
class CenteredClipping(Aggregator):
    """v ← v + mean of (uᵢ − v) · min(1, radius / ‖uᵢ − v‖), starting from the previous round's v.

    The norm is that of the trainable part; the factor applies to the buffers too. Weights are not used. The paper's
    clients send worker momentum, a running average of their updates: the hook `worker-momentum`, which the defense
    `centered-clipping` includes. Without it an attack that hides in the noise of single updates adds up over rounds.

    Args:
        radius: Differences are clipped to this norm: one client moves v by at most radius / n. The default is the
            paper's τ for momentum 0.9.
        steps: How often the formula is applied per round. With the paper's 1, v converges over the rounds.
    """

    radius: float = 10.0
    steps: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise ValueError(f"CenteredClipping.radius must be positive and finite, got {self.radius}")
        if self.steps < 1:
            raise ValueError(f"CenteredClipping.steps must be at least 1, got {self.steps}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        updates = cohort.updates
        center = None if state is None else state.to(updates.device, compute_dtype(updates.dtype))
        moved = clipped_mean(updates, center, self.radius, self.steps, cohort.layout.n_trainable)
        return moved.to(updates.dtype), moved
