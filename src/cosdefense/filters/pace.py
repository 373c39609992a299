"""Pace: no update is longer than updates usually are.

Clipping to a length that follows the updates is known from Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private
Learning with Adaptive Clipping. NeurIPS 2021. https://arxiv.org/abs/1905.03871. This rule is the project's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..cohort import Cohort
from ..defense import Filter, Judgment, State
from ..memory import check_decay, running
from ..ops import median_of, rescaled, row_norms


@dataclass(frozen=True)
class Pace(Filter):
    """Rejects updates more than `longest` times as long as usual and shortens the rest to the usual length.

    Usual is the running average of the accepted updates' median length, one number. It at most doubles what it was,
    so that liars cannot raise it quickly; in the first round it is the median. Where updates become longer all at once,
    as honest ones do when a model leaves a plateau, `longest` is counted from the shorter part (`crowd`) of the round
    instead: they are shortened, not rejected. The score is the length before.
    """

    longest: float = 2.0  # usual lengths
    decay: float = 0.95  # how much of the usual length is the past's
    crowd: float = 0.4  # after the first round, the longest 1 − crowd of the clients cannot get themselves accepted

    def __post_init__(self) -> None:
        if not 1 <= self.longest < math.inf:
            raise ValueError(f"Pace.longest must be at least 1 and finite, got {self.longest}")
        if not 0 <= self.crowd < 1:
            raise ValueError(f"Pace.crowd must be in [0, 1), got {self.crowd}")
        check_decay(self)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        usual = state or float(median_of(norms))  # a past without any movement tells nothing
        crowd = float(norms.quantile(self.crowd, interpolation="lower"))
        accepted = norms <= self.longest * max(usual, crowd)
        factors = torch.where(norms > usual, usual / norms, 1.0)
        now = min(float(median_of(norms[accepted])), 2 * usual)
        return Judgment(norms, accepted, rescaled(cohort.updates, factors)), running(state or None, now, self.decay)
