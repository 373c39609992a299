"""Median: the middle value of every coordinate.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates. ICML 2018. https://arxiv.org/abs/1803.01498
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State
from ..ops import median


@dataclass(frozen=True)
class Median(Aggregator):
    """The coordinate-wise median; for an even number of clients, the mean of the two middle values.

    Weights are not used.
    """

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        return median(cohort.updates), state
