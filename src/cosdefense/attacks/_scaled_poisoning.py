"""What targeted attacks share that train on poisoned batches and send a multiple of their update."""

from __future__ import annotations

import math

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Layout, State
from .attack import Attack, TrainingPlan
from .explicit_boosting import boost_factor


class ScaledPoisoning(Attack):
    """Poison a fraction of every batch, train for some steps, and send scale · u. Subclasses declare the options."""

    fraction: float
    scale: float | None  # None: n / n_malicious
    steps: int | None  # None: as many as honest clients

    def _check_poisoning(self) -> None:
        name = type(self).__name__
        if not 0 < self.fraction <= 1:
            raise ValueError(f"{name}.fraction must be in (0, 1], got {self.fraction}")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"{name}.scale must be positive and finite, got {self.scale}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"{name}.steps must be at least 1, got {self.steps}")

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return TrainingPlan(self.steps)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return cohort.updates * (boost_factor(malicious) if self.scale is None else self.scale), state
