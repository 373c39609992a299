"""Trimmed mean: drop the extreme values of every coordinate on both sides and average the others.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates. ICML 2018. https://arxiv.org/abs/1803.01498
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, Need, State
from ..ops import fraction_of, trimmed_mean


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The coordinate-wise mean without the floor(contamination · n) lowest and highest values.

    Weights are not used.

    Args:
        contamination: The expected share of malicious clients, below a half so that some values are left.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.contamination < 0.5:
            raise ValueError(f"TrimmedMean.contamination must be in [0, 0.5), got {self.contamination}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        n = len(cohort)
        trim = min(fraction_of(self.contamination, n), (n - 1) // 2)  # 0.4999999999 of 10 must not be 5
        return trimmed_mean(cohort.updates, trim), state
