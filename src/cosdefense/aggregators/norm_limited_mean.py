"""Steady mean: the average, but no longer than averages usually are. The project's own."""

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
    """The weighted mean, shortened to `max_ratio` usual lengths.

    Honest updates differ, so their mean is much shorter than each of them; colluders agree, so theirs is not. Usual is
    the running average of the means' lengths, one number that at most doubles in a round.
    """

    skips_rejected: ClassVar[bool] = True

    max_ratio: float = 1.2  # usual lengths
    decay: float = 0.95  # how much of the usual length is the past's

    def __post_init__(self) -> None:
        if not 0 < self.max_ratio < math.inf:
            raise ValueError(f"NormLimitedMean.max_ratio must be positive and finite, got {self.max_ratio}")
        check_decay(self)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        mean, _ = Mean()(cohort, None)
        length = float(row_norms(mean[None, : cohort.layout.n_trainable]))
        usual = state or length  # a past without any movement tells nothing
        if length > self.max_ratio * usual:
            mean = mean * (self.max_ratio * usual / length)
        return mean, running_average(state or None, min(length, 2 * usual), self.decay)
