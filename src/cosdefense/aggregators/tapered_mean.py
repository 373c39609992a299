"""Tapered mean: every update counts by its length, long ones less and less; the mean has a limited norm.

This rule was made for this project. See docs/factions-history.md for the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State, check_decay, running_average
from ..ops import median_of, row_norms, weighted_sum

SHORTEST = 0.3  # of the norm of an update: no history of means that canceled limits the next one to less


@dataclass(frozen=True)
class NormMemory:
    """Running averages: of the median norm of updates, and of the norm of the mean."""

    update: float | None = None
    mean: float | None = None


@dataclass(frozen=True)
class Tapered:
    """How much the updates of a round count.

    Args:
        shares: What the rows are multiplied by in the mean, before its norm is limited.
        limit: L, see `TaperedMean`.
        median: The round's median norm.
    """

    shares: Float[Tensor, " n"]
    limit: float
    median: float


@dataclass(frozen=True)
class TaperedMean(Aggregator):
    """L · Σ wᵢ ℓᵢ uᵢ / ‖uᵢ‖ / Σ wᵢ ℓᵢ, where ℓᵢ is the norm of an update, clipped to L and tapered off.

    L is the smaller one of the round's median norm and its running average. An update longer than t, `taper` times L or
    the round's median if that is larger, counts as ℓ = L · (t / ‖u‖)²: no norm is rejected, and no threshold decides
    between all and nothing. Because the sum is divided by the lengths, updates of zero or nearly zero do not slow the
    model down. The mean is clipped to `max_mean_ratio` times the running average of its norm, or to 0.3 L if that is
    more. In both running averages one round counts with at most twice the previous value. Buffers get the same
    factors.

    Args:
        taper: From how many typical norms on an update counts less than a typical one.
        max_mean_ratio: The largest allowed norm of the mean, relative to the running average.
        decay: How much of the running averages is kept from round to round.
    """

    skips_rejected: ClassVar[bool] = True

    taper: float = 1.5
    max_mean_ratio: float = 1.2
    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 1 <= self.taper < math.inf:
            raise ValueError(f"TaperedMean.taper must be at least 1 and finite, got {self.taper}")
        if not 0 < self.max_mean_ratio < math.inf:
            raise ValueError(f"TaperedMean.max_mean_ratio must be positive and finite, got {self.max_mean_ratio}")
        check_decay(self)

    def init(self) -> State:
        return NormMemory()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        norms, weights = row_norms(cohort.trainable()).double(), cohort.weights.double()
        tapered = self.taper_rows(norms, weights, state)
        if tapered is None:  # nobody moved the weights; buffers may have moved
            return weighted_sum(cohort.updates, weights / weights.sum()), state
        mean = weighted_sum(cohort.updates, tapered.shares)
        return self.limit_mean(mean, cohort.layout.n_trainable, tapered, state)

    def taper_rows(
        self, norms: Float[Tensor, " n"], weights: Float[Tensor, " n"], memory: NormMemory
    ) -> Tapered | None:
        """How much every update counts, from its norm and its weight alone. None: nobody moved the weights."""
        counting = norms[(weights > 0) & (norms > 0)]
        if len(counting) == 0:
            return None
        median = float(median_of(counting))
        limit = min(median, memory.update or median)
        # Where most updates become long at once, none of them is unusual.
        start = self.taper * max(limit, float(counting.quantile(0.5, interpolation="lower")))
        lengths = norms.clamp_max(limit) * (start / norms.clamp_min(start)).square()
        factors = torch.where(norms > 0, weights * lengths / norms.clamp_min(torch.finfo(norms.dtype).tiny), 0)
        return Tapered(limit * factors / (weights * lengths).sum(), limit, median)

    def limit_mean(
        self, mean: Float[Tensor, " d"], n_trainable: int, tapered: Tapered, memory: NormMemory
    ) -> tuple[Float[Tensor, " d"], NormMemory]:
        """The mean with a limited norm, and what is remembered."""
        norm = float(row_norms(mean[None, :n_trainable]))
        average = memory.mean or norm
        allowed = max(self.max_mean_ratio * average, SHORTEST * tapered.limit)
        if norm > allowed:
            mean = mean * (allowed / norm)
        median = min(tapered.median, 2 * (memory.update or tapered.median))
        return mean, NormMemory(
            running_average(memory.update, median, self.decay),
            running_average(memory.mean or None, min(norm, 2 * average), self.decay) or None,
        )
