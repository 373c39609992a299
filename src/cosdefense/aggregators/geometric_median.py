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
    """argmin over v of Σ ‖uᵢ − v‖, by the smoothed Weiszfeld iteration.

    The result is a weighted mean of the updates. Distances are those of the trainable parts; the resulting weights
    apply to the buffers too. The weights of the cohort are not used. The paper stops after a few steps and smooths
    with a fixed distance. Here steps cost little compared with reading the updates, and the smoothing is relative,
    so that the scale of the updates does not matter.

    Args:
        steps: The largest number of steps. The iteration stops earlier when the weights of the updates converge.
        smoothing: The least distance that counts, as a share of the median distance.
    """

    steps: int = 100
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"GeometricMedian.steps must be at least 1, got {self.steps}")
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"GeometricMedian.smoothing must be in (0, 1], got {self.smoothing}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        return geometric_median(cohort.updates, self.steps, self.smoothing, cohort.layout.n_trainable), state
