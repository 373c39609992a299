"""Median clip: limit the norm of every update to the running median norm.

No fixed norm fits every model and every phase of training. Several published rules (FLAME, LASA, SignGuard) clip to
the median norm of the round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..core import Cohort, Filter, Judgment, State, check_decay, running_average
from ..ops import clip_rows, median_of, row_norms


@dataclass(frozen=True)
class MedianClip(Filter):
    """Scale every update u to u · min(1, ratio · m / ‖u‖), where m is the running median of the norms.

    m is a running average of the median norm of a round; in the first round it is the median. One round counts with at
    most twice the previous value, so that malicious clients cannot raise it quickly. Rejects no update. The score is
    the norm before clipping. As in Clip, the factor applies to the buffers too.

    Args:
        ratio: The largest allowed norm, in running medians.
        decay: How much of the running median is kept from round to round. 0 is the median of the round.
    """

    ratio: float = 1.0
    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"MedianClip.ratio must be positive and finite, got {self.ratio}")
        check_decay(self)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        now = float(median_of(norms))
        past = state or None  # a running median of zero carries no information
        median = running_average(past, now if past is None else min(now, 2 * past), self.decay)
        clipped = clip_rows(cohort.updates, norms, self.ratio * median)
        return Judgment(norms, torch.ones_like(cohort.weights), clipped), median
