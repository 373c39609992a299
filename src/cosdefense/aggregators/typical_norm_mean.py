"""Typical norm mean: an update counts by its norm up to a little more than a typical one, and less beyond.

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

MIN_REMEMBERED = 400  # updates of recent rounds
LONGEST = 1.5  # typical norms: the longest that an update may count as
HALF = 0.5  # of the mean weight of those not rejected: from there on a norm counts fully, so that crowded updates do
LARGEST_RATIO = 3.0  # of norms of honest updates to the median of their round; few are above
CAUTION = 1.0  # standard deviations of a share below the median
SHORTEST = 0.3  # of a typical norm: no history of means that canceled limits the next one to less
DECAY = 0.95  # of the running average of the norm of the mean


@dataclass(frozen=True)
class RecentNorms:
    """What `TypicalNormMean` remembers of the updates of recent rounds.

    Args:
        norms: Of the updates.
        weights: How much each counts, by the weights that filters gave them.
        ratios: Of each norm to the median norm of its round.
        mean: The running average of the norm of the mean.
    """

    norms: Float[Tensor, " m"] | None = None
    weights: Float[Tensor, " m"] | None = None
    ratios: Float[Tensor, " m"] | None = None
    mean: float | None = None


@dataclass(frozen=True)
class TypicalNormMean(Aggregator):
    """S · Σ wᵢ ℓᵢ uᵢ / ‖uᵢ‖ / Σ wᵢ ℓᵢ, where ℓᵢ is the norm of an update up to M = 1.5 L, and M² / ‖uᵢ‖ beyond.

    L is a quantile of the norms of this and of recent rounds, at least 400 updates: 0.5 − 0.5 / √N, where N is how many
    count. It is close to the median once there are many. In a first round of ten it is the fourth shortest: few updates
    do not show which half of them is too long. One round cannot move it far, and updates that a filter rejected do not
    move it. Those with half of the mean weight of the others, or more, count fully, those with less by their weight.

    No norm is rejected, and no threshold decides between all and nothing: an update twice as long as M counts as M / 2.
    Where the median norm of the round is more than M, updates count less from that median on. Where norms shrink from
    round to round, L is out of date, so no ℓᵢ is more than 1.5 times the median norm of the round, the upper one of
    two. Because the sum is divided by the lengths, updates of zero do not slow the model down.

    S is the smaller one of L and that median, times the mean ratio of a remembered norm to the median of its own round:
    norms are skewed, and with a median as its length the step would be shorter than that of a mean. Ratios are clipped
    to 3, and larger ones hardly count. The mean is clipped to `max_mean_ratio` times the running average of its norm,
    or to 0.3 of the smaller one of L and that median if that is more. Buffers get the same factors.

    Args:
        max_mean_ratio: The largest allowed norm of the mean, relative to the running average.
    """

    skips_rejected: ClassVar[bool] = True

    max_mean_ratio: float = 1.2

    def __post_init__(self) -> None:
        if not 0 < self.max_mean_ratio < math.inf:
            raise ValueError(f"TypicalNormMean.max_mean_ratio must be positive and finite, got {self.max_mean_ratio}")

    def init(self) -> State:
        return RecentNorms()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        memory: RecentNorms = state
        # A few hundred numbers: a GPU would be waited for at each of the steps.
        norms, weights = row_norms(cohort.trainable()).double().cpu(), cohort.weights.double().cpu()
        counting = norms[(weights > 0) & (norms > 0)]
        if len(counting) == 0:  # nobody moved the weights; buffers may have moved
            return weighted_sum(cohort.updates, weights / weights.sum()), state
        median = counting.quantile(0.5, interpolation="midpoint")
        full = (weights / (HALF * weights[weights > 0].mean())).clamp_max(1)
        recent = _remember(memory, norms[norms > 0], full[norms > 0], float(median))
        remembered, counts, ratios = recent
        typical = _find_typical(remembered, counts)
        # Where most updates become long at once, none of them is unusual.
        start = max(LONGEST * typical, float(counting.quantile(0.5, interpolation="lower")))
        # Where most become short at once, those as long as before would outweigh them.
        usual = float(counting.quantile(0.5, interpolation="higher"))
        shorter = min(typical, usual)
        lengths = norms.clamp_max(LONGEST * shorter) * start / norms.clamp_min(start)
        factors = torch.where(norms > 0, weights * lengths / norms.clamp_min(torch.finfo(norms.dtype).tiny), 0)
        step = shorter * _find_mean(ratios, counts)
        mean = weighted_sum(cohort.updates, step * factors / (weights * lengths).sum())
        norm = float(row_norms(mean[None, : cohort.layout.n_trainable]))
        average = memory.mean or norm
        allowed = max(self.max_mean_ratio * average, SHORTEST * shorter)
        if norm > allowed:
            mean = mean * (allowed / norm)
        learned = running_average(memory.mean or None, min(norm, max(2 * average, allowed)), DECAY)
        return mean, RecentNorms(*recent, learned or None)


def _remember(
    memory: RecentNorms, norms: Float[Tensor, " n"], weights: Float[Tensor, " n"], median: float
) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"], Float[Tensor, " k"]]:
    """Norms, weights and ratios of the latest updates of earlier rounds and of all of this one.

    A memory of an earlier version, which has no ratios, is begun anew.
    """
    ratios = norms / median
    kept = MIN_REMEMBERED - len(norms)
    if kept <= 0 or memory.norms is None or memory.weights is None or memory.ratios is None:
        return norms, weights, ratios
    return (
        torch.cat([memory.norms.to(norms)[-kept:], norms]),
        torch.cat([memory.weights.to(weights)[-kept:], weights]),
        torch.cat([memory.ratios.to(ratios)[-kept:], ratios]),
    )


def _find_typical(norms: Float[Tensor, " m"], weights: Float[Tensor, " m"]) -> float:
    """The shortest norm that, with all shorter ones, has that share of the weights."""
    norms, order = norms.sort()
    reached = weights[order].cumsum(dim=0)
    total = float(reached[-1])
    level = max(0.1, 0.5 - CAUTION / 2 / math.sqrt(max(1.0, total)))
    return float(norms[int((reached < level * total).sum())])


def _find_mean(ratios: Float[Tensor, " m"], weights: Float[Tensor, " m"]) -> float:
    """The mean of the clipped ratios; those that are much larger hardly count. The order of a round does not show."""
    ratios, order = ratios.sort()
    counts = weights[order] * (LARGEST_RATIO / ratios.clamp_min(LARGEST_RATIO)).pow(4)
    return float((counts * ratios.clamp_max(LARGEST_RATIO)).sum() / counts.sum())
