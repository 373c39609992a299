"""Norm-limited mean: the average, clipped relative to the running average of earlier averages' norms.

This rule was made for this project. See docs/factions-history.md for the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State, check_decay, running_average
from ..ops import row_norms
from .mean import Mean


@dataclass(frozen=True)
class NormLimitedMean(Aggregator):
    """The weighted mean, clipped to `max_mean_ratio` times the running average of its norm.

    Honest updates differ, so their mean is much shorter than each of them. The updates of colluding clients agree, so
    their mean is not. The running average is one number. One round counts with at most twice the previous value.

    Args:
        max_mean_ratio: The largest allowed norm of the mean, relative to the running average.
        decay: How much of the running average is kept from round to round.
    """

    skips_rejected: ClassVar[bool] = True

    max_mean_ratio: float = 1.2
    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.max_mean_ratio < math.inf:
            raise ValueError(f"NormLimitedMean.max_mean_ratio must be positive and finite, got {self.max_mean_ratio}")
        check_decay(self)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        mean, _ = Mean()(cohort, None)
        norm = float(row_norms(mean[None, : cohort.layout.n_trainable]))
        average = state or norm  # a running average of zero carries no information
        if norm > self.max_mean_ratio * average:
            mean = mean * (self.max_mean_ratio * average / norm)
        return mean, running_average(state or None, min(norm, 2 * average), self.decay)
