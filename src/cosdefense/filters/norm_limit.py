"""Norm limit: reject updates much longer than the running median norm, and clip the others to it.

Clipping to a norm that follows the updates is known from Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private
Learning with Adaptive Clipping. NeurIPS 2021. https://arxiv.org/abs/1905.03871
This rule was made for this project. See docs/factions-history.md for the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Judgment, Similarities, SimilarityFilter, State, check_decay, running_average
from ..ops import median_of


@dataclass(frozen=True)
class NormLimit(SimilarityFilter):
    """Reject updates longer than `max_ratio` running median norms, and clip the others to the running median norm.

    The running median norm is a running average of the median norm of the accepted updates. In the first round it is
    the median. One round counts with at most twice the previous value, so that malicious clients cannot raise it
    quickly. Honest updates may become longer all at once, for example when a model leaves a plateau. If a `quantile`
    of the round's norms exceeds the running median norm, `max_ratio` is relative to that quantile: the long updates
    are then clipped instead of rejected. The score is the norm before clipping.

    Args:
        max_ratio: An update longer than this many running median norms is rejected.
        decay: How much of the running median norm is kept from round to round.
        quantile: Which quantile of the norms can raise the limit. Malicious clients can raise it alone only if more
            than 1 − quantile of the clients are malicious.
    """

    limits_norms: ClassVar[bool] = True

    max_ratio: float = 2.0
    decay: float = 0.95
    quantile: float = 0.4

    def __post_init__(self) -> None:
        if not 1 <= self.max_ratio < math.inf:
            raise ValueError(f"NormLimit.max_ratio must be at least 1 and finite, got {self.max_ratio}")
        if not 0 <= self.quantile < 1:
            raise ValueError(f"NormLimit.quantile must be in [0, 1), got {self.quantile}")
        check_decay(self)

    def get_typical_norm(self, state: State) -> float | None:
        return state or None

    def judge(self, similarities: Similarities, weights: Tensor, state: State) -> tuple[Judgment, State]:
        norms = similarities.norms()
        median = state or float(median_of(norms))  # a running median of zero carries no information
        quantile = float(norms.quantile(self.quantile, interpolation="lower"))
        accepted = norms <= self.max_ratio * max(median, quantile)
        factors = torch.where(norms > median, median / norms, 1.0)
        now = min(float(median_of(norms[accepted])), 2 * median)
        return Judgment(norms, accepted, factors=factors), running_average(state or None, now, self.decay)
