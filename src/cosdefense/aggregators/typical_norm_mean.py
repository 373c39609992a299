"""Typical norm mean: updates are clipped to a typical norm of recent rounds; much longer ones hardly count.

This rule was made for this project. See docs/factions.md for the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State, running_average
from ..ops import row_norms, weighted_sum

MIN_REMEMBERED = 400  # norms of recent rounds
CAUTION = 1.0  # standard deviations of a share below the median
SHORTEST = 0.3  # of a typical norm: no history of means that canceled limits the next one to less
DECAY = 0.95  # of the running average of the norm of the mean


@dataclass(frozen=True)
class RecentNorms:
    """The norms of all updates of recent rounds, and the running average of the norm of the mean."""

    norms: Float[Tensor, " m"] | None = None
    mean: float | None = None


@dataclass(frozen=True)
class TypicalNormMean(Aggregator):
    """L · Σ wᵢ ℓᵢ uᵢ / ‖uᵢ‖ / Σ wᵢ ℓᵢ, where ℓᵢ is the norm of an update, clipped to L; very long ones count less.

    L is a quantile of the norms of all N updates of this and of recent rounds, at least 400: 0.5 − 0.5 / √N. It is
    close to the median once there are many. In a first round of ten it is the fourth shortest: few updates do not show
    which half of them is too long. One round cannot move it far.

    From t on, `taper` times L or the median norm of the round if that is larger, an update counts as L · (t / ‖u‖)⁴: no
    norm is rejected, and no threshold decides between all and nothing. Because the sum is divided by the lengths,
    updates of zero or nearly zero do not slow the model down. The mean is clipped to `max_mean_ratio` times the
    running average of its norm, or to 0.3 L if that is more. Buffers get the same factors.

    Args:
        taper: From how many typical norms on an update counts less than a typical one.
        max_mean_ratio: The largest allowed norm of the mean, relative to the running average.
    """

    skips_rejected: ClassVar[bool] = True

    taper: float = 3.0
    max_mean_ratio: float = 1.2

    def __post_init__(self) -> None:
        if not 1 <= self.taper < math.inf:
            raise ValueError(f"TypicalNormMean.taper must be at least 1 and finite, got {self.taper}")
        if not 0 < self.max_mean_ratio < math.inf:
            raise ValueError(f"TypicalNormMean.max_mean_ratio must be positive and finite, got {self.max_mean_ratio}")

    def init(self) -> State:
        return RecentNorms()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        memory: RecentNorms = state
        norms, weights = row_norms(cohort.trainable()).double(), cohort.weights.double()
        counting = norms[(weights > 0) & (norms > 0)]
        if len(counting) == 0:  # nobody moved the weights; buffers may have moved
            return weighted_sum(cohort.updates, weights / weights.sum()), state
        recent = _remember(memory.norms, norms[norms > 0])
        limit = _find_typical(recent)
        # Where most updates become long at once, none of them is unusual.
        start = self.taper * max(limit, float(counting.quantile(0.5, interpolation="lower")))
        lengths = norms.clamp_max(limit) * (start / norms.clamp_min(start)).pow(4)
        factors = torch.where(norms > 0, weights * lengths / norms.clamp_min(torch.finfo(norms.dtype).tiny), 0)
        mean = weighted_sum(cohort.updates, limit * factors / (weights * lengths).sum())
        norm = float(row_norms(mean[None, : cohort.layout.n_trainable]))
        average = memory.mean or norm
        allowed = max(self.max_mean_ratio * average, SHORTEST * limit)
        if norm > allowed:
            mean = mean * (allowed / norm)
        learned = running_average(memory.mean or None, min(norm, max(2 * average, allowed)), DECAY)
        return mean, RecentNorms(recent, learned or None)


def _remember(past: Float[Tensor, " m"] | None, norms: Float[Tensor, " n"]) -> Float[Tensor, " k"]:
    """All norms of this round, and the latest of those before."""
    kept = 0 if past is None else min(len(past), max(0, MIN_REMEMBERED - len(norms)))
    return norms if past is None or kept == 0 else torch.cat([past.to(norms)[-kept:], norms])


def _find_typical(norms: Float[Tensor, " m"]) -> float:
    level = max(0.1, 0.5 - CAUTION / 2 / math.sqrt(len(norms)))
    return float(norms.sort().values[math.floor((len(norms) - 1) * level)])
