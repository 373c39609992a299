"""Quantile clip: limit the norm of every update to a norm that follows a quantile of the norms.

Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private Learning with Adaptive Clipping. NeurIPS 2021.
https://arxiv.org/abs/1905.03871
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..core import Cohort, Filter, Judgment, State, generator
from ..ops import clip_rows, median_of, row_norms


@dataclass(frozen=True)
class QuantileClip(Filter):
    """Scale every update u to u · min(1, C / ‖u‖), then move C ← C · exp(−rate · (b − quantile)).

    b is the share of updates with ‖u‖ ≤ C. C rises while too many updates are longer and falls while too few are, by
    at most exp(rate) per round. Rejects no update. The score is the norm before clipping. As in Clip, the factor
    applies to the buffers too.

    Args:
        quantile: The share of updates that should not be clipped.
        rate: How fast C moves. The default is the paper's.
        start: C in the first round. None is the median norm of the first round; the paper starts at 0.1, and a wrong
            start takes 23 rounds per factor of 10.
        noise: The standard deviation of the Gaussian noise on the count n · b, for privacy: the paper's is n / 20.
    """

    quantile: float = 0.5
    rate: float = 0.2
    start: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"QuantileClip.quantile must be in [0, 1], got {self.quantile}")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"QuantileClip.rate must be positive and finite, got {self.rate}")
        if self.start is not None and not 0 < self.start < math.inf:
            raise ValueError(f"QuantileClip.start must be positive and finite, got {self.start}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"QuantileClip.noise must be at least 0 and finite, got {self.noise}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        # Zero could never grow again: a first round of zero updates does not start C.
        limit = state or self.start or float(median_of(norms))
        within = float((norms <= limit).sum())
        if self.noise > 0:
            within += self.noise * float(torch.randn((), generator=generator(cohort.seed, "quantile clip")))
        moved = limit * math.exp(-self.rate * (within / len(cohort) - self.quantile))
        clipped = clip_rows(cohort.updates, norms, limit)
        return Judgment(norms, torch.ones_like(cohort.weights), clipped), moved
