"""Geometric median: the point with the smallest sum of distances to the updates.

Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal
Processing 2022. https://arxiv.org/abs/1912.13445
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State
from ..ops import geometric_median


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """argmin Σ ‖uᵢ − v‖, by the smoothed Weiszfeld iteration. Weights are not used.

    The paper stops after a few steps and smooths by a fixed length; here steps cost nothing beside reading
    the updates, and the length is relative, so that the unit of the updates does not matter.
    """

    steps: int = 100  # at most; it stops when the weights of the updates do
    smoothing: float = 1e-6  # the least distance that counts, as a share of the median distance

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"GeometricMedian.steps must be at least 1, got {self.steps}")
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"GeometricMedian.smoothing must be in (0, 1], got {self.smoothing}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        return geometric_median(cohort.updates, self.steps, self.smoothing), state
