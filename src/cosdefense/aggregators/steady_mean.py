"""Steady mean: the average, but no longer than averages usually are. The project's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ..cohort import Cohort
from ..defense import Aggregator, State
from ..memory import check_decay, running
from ..ops import row_norms
from .mean import Mean


@dataclass(frozen=True)
class SteadyMean(Aggregator):
    """The weighted mean, shortened to `longest` usual lengths.

    Honest updates differ, so their mean is much shorter than each of them; colluders agree, so theirs is not. Usual is
    the running average of the means' lengths, one number that at most doubles in a round.
    """

    skips_rejected: ClassVar[bool] = True

    longest: float = 1.2  # usual lengths
    decay: float = 0.95  # how much of the usual length is the past's

    def __post_init__(self) -> None:
        if not 0 < self.longest < math.inf:
            raise ValueError(f"SteadyMean.longest must be positive and finite, got {self.longest}")
        check_decay(self)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        mean, _ = Mean()(cohort, None)
        length = float(row_norms(mean[None, : cohort.layout.n_trainable]))
        usual = state or length  # a past without any movement tells nothing
        if length > self.longest * usual:
            mean = mean * (self.longest * usual / length)
        return mean, running(state or None, min(length, 2 * usual), self.decay)
