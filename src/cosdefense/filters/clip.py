"""Clip: shorten every update to a maximal length.

Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning? 2019. https://arxiv.org/abs/1911.07963
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..core import Cohort, Filter, Judgment, State
from ..ops import row_norms


@dataclass(frozen=True)
class Clip(Filter):
    """Scales u to u · min(1, max_norm / ‖u‖). Rejects nobody; the score is the length before."""

    max_norm: float = 2.0  # the value of the CosDefense paper's Clipping-Median

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < math.inf:
            raise ValueError(f"Clip.max_norm must be positive and finite, got {self.max_norm}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        # The length is that of the weights, but buffers shrink along: an update is believed as a whole.
        factors = (self.max_norm / norms.clamp_min(self.max_norm)).to(cohort.updates.dtype)
        return Judgment(norms, torch.ones_like(cohort.weights), cohort.updates * factors[:, None]), state
