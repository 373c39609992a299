"""Clip: limit the norm of every update.

Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning? 2019. https://arxiv.org/abs/1911.07963
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..core import Cohort, Filter, Judgment, State
from ..ops import clip_rows, row_norms


@dataclass(frozen=True)
class Clip(Filter):
    """Scale every update u to u · min(1, max_norm / ‖u‖).

    Rejects no update. The score is the norm before clipping. The norm is that of the trainable part; the factor
    applies to the buffers too, because an update is trusted as a whole.

    Args:
        max_norm: The largest allowed norm. The default is that of the CosDefense paper's Clipping-Median.
    """

    max_norm: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < math.inf:
            raise ValueError(f"Clip.max_norm must be positive and finite, got {self.max_norm}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        return Judgment(norms, torch.ones_like(cohort.weights), clip_rows(cohort.updates, norms, self.max_norm)), state
