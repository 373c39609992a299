"""NormLimit: no update is longer than updates usually are.

Clipping to a length that follows the updates is known from Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private
Learning with Adaptive Clipping. NeurIPS 2021. https://arxiv.org/abs/1905.03871. This rule is the project's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..core import Cohort, Filter, Judgment, State, check_decay, running_average
from ..ops import median_of, rescaled, row_norms


@dataclass(frozen=True)
class NormLimit(Filter):
    """Rejects updates more than `max_ratio` times as long as usual and shortens the rest to the usual length.

    Usual is the running average of the accepted updates' median length, one number. It at most doubles what it was,
    so that malicious clients cannot raise it quickly; in the first round it is the median. Where updates become longer
    all at once, as honest ones do when a model leaves a plateau, `max_ratio` is counted from a `quantile` of the
    round's norms instead: they are shortened, not rejected. The score is the length before.
    """

    max_ratio: float = 2.0  # usual lengths
    decay: float = 0.95  # how much of the usual length is the past's
    quantile: float = 0.4  # after the first round, the longest 1 − quantile of the clients cannot get in by themselves

    def __post_init__(self) -> None:
        if not 1 <= self.max_ratio < math.inf:
            raise ValueError(f"NormLimit.max_ratio must be at least 1 and finite, got {self.max_ratio}")
        if not 0 <= self.quantile < 1:
            raise ValueError(f"NormLimit.quantile must be in [0, 1), got {self.quantile}")
        check_decay(self)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        usual = state or float(median_of(norms))  # a past without any movement tells nothing
        quantile = float(norms.quantile(self.quantile, interpolation="lower"))
        accepted = norms <= self.max_ratio * max(usual, quantile)
        factors = torch.where(norms > usual, usual / norms, 1.0)
        now = min(float(median_of(norms[accepted])), 2 * usual)
        return Judgment(norms, accepted, rescaled(cohort.updates, factors)), running_average(
            state or None, now, self.decay
        )
