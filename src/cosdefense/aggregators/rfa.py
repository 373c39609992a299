"""RFA: a few steps from the mean towards the geometric median, as published.

Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal
Processing 2022. https://arxiv.org/abs/1912.13445

The defaults are those of the authors' code. It also discards an aggregate that is longer than 1000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State
from ..ops import compute_dtype, mean_of, row_norms, weighted_sum


@dataclass(frozen=True)
class RFA(Aggregator):
    """v ← Σ βᵢ uᵢ / Σ βᵢ with βᵢ = wᵢ / max(smoothing, ‖uᵢ − v‖), repeated a few times from the weighted mean.

    GeometricMedian continues to convergence. A few steps leave a part of a far outlier in the result. Distances are
    those of the trainable parts; the weights apply to the buffers too.

    Args:
        steps: The largest number of steps.
        smoothing: The least distance that counts. It is a length: for updates shorter than it the rule is the mean.
        tolerance: The iteration stops when Σ wᵢ ‖uᵢ − v‖ changes by less than this share of itself.
    """

    steps: int = 4
    smoothing: float = 1e-5
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"RFA.steps must be at least 1, got {self.steps}")
        if not 0 < self.smoothing < math.inf:
            raise ValueError(f"RFA.smoothing must be positive and finite, got {self.smoothing}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"RFA.tolerance must be in [0, 1), got {self.tolerance}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        rows, n_trainable = cohort.updates, cohort.layout.n_trainable
        given = cohort.weights.double()
        given = weights = given / given.sum()
        center, objective = weighted_sum(rows, weights, compute_dtype(rows.dtype)), math.inf
        for _ in range(self.steps):
            distances = row_norms(cohort.trainable(), center[:n_trainable])
            previous, objective = objective, float(mean_of(given * distances))
            if abs(previous - objective) < self.tolerance * objective:
                break
            weights = given / distances.clamp_min(self.smoothing)
            center = weighted_sum(rows, weights / weights.sum(), compute_dtype(rows.dtype))
        limits = torch.finfo(rows.dtype)
        return center.clamp(limits.min, limits.max).to(rows.dtype), state
