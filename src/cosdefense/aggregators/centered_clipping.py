"""Centered clipping: move the last round's update towards the new ones, by no more than a radius each.

Karimireddy, He, Jaggi. Learning from History for Byzantine Robust Optimization. ICML 2021.
https://arxiv.org/abs/2012.10333
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State
from ..ops import clipped_mean


@dataclass(frozen=True)
class CenteredClipping(Aggregator):
    """v ← v + mean (uᵢ − v) · min(1, radius / ‖uᵢ − v‖), from the last round's v. Weights are not used."""

    radius: float = 10.0  # how far one client may pull; the paper's τ for momentum 0.9
    steps: int = 1  # the paper's choice: v comes near over the rounds

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise ValueError(f"CenteredClipping.radius must be positive and finite, got {self.radius}")
        if self.steps < 1:
            raise ValueError(f"CenteredClipping.steps must be at least 1, got {self.steps}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        center = None if state is None else state.to(cohort.updates)
        moved = clipped_mean(cohort.updates, center, self.radius, self.steps)
        return moved, moved
