"""Groups of numbers on a line: exact k-means, and how many groups there are. No random starts."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

ROUNDING = 1e-24  # the least sum of squares of numbers in [0, 1] that is not a rounding error


def count_groups(scores: Float[Tensor, " n"], max_groups: int, draws: int, rng: torch.Generator) -> int:
    """How many groups the scores, scaled to [0, 1], form: by the gap statistic, compared with uniform numbers.

    Tibshirani, Walther, Hastie. Estimating the Number of Clusters in a Data Set via the Gap Statistic. 2001.
    """
    n = len(scores)
    reference = torch.rand(draws, n, generator=rng, dtype=torch.float64)
    spread = within_groups(torch.cat([scores.double().cpu()[None], reference]), min(max_groups, n)).clamp_min(ROUNDING)
    own, others = spread[0], spread[1:]
    gaps = (others.mean(dim=0).log() - own.log()).tolist()
    deviations = (math.sqrt((1 + draws) / draws) * others.log().std(dim=0, correction=0)).tolist()
    for k in range(1, len(gaps)):
        if gaps[k - 1] - gaps[k] + deviations[k] >= 0:
            return k
    return len(gaps)


def split_in_two(scores: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Who is in the higher of the two groups with the least sum of squared distances to their means."""
    values = scores.double().cpu().sort().values
    cuts = [i for i in range(1, len(values)) if values[i] > values[i - 1]]  # equal scores stay together
    if not cuts:
        return torch.zeros_like(scores, dtype=torch.bool)
    costs = _segment_costs(values[None])[0]
    best = min(cuts, key=lambda cut: float(costs[0, cut - 1] + costs[cut, -1]))
    return scores >= values[best].to(scores)


def within_groups(numbers: Float[Tensor, "m n"], most: int) -> Float[Tensor, "m most"]:
    """The least sum of squared distances to the means of 1, 2, … `most` groups, for every row of numbers."""
    costs = _segment_costs(numbers.sort(dim=1).values)
    best, sums = costs[:, 0], [costs[:, 0, -1]]  # of the first numbers up to each, in one group
    for _ in range(1, most):
        # The last group starts at number j; the numbers before it are divided as well as possible.
        before = torch.cat([torch.full_like(best[:, :1], torch.inf), best[:, :-1]], dim=1)
        best = torch.minimum(best, (before[:, :, None] + costs).amin(dim=1))
        sums.append(best[:, -1])
    return torch.stack(sums, dim=1)


def _segment_costs(values: Float[Tensor, "m n"]) -> Float[Tensor, "m n n"]:
    """The sum of squared distances to their mean of sorted numbers from i to j; infinite for i > j."""
    n = values.shape[1]
    centered = values - values.mean(dim=1, keepdim=True)  # or squares of numbers far from zero would cancel
    zero = torch.zeros_like(values[:, :1])
    sums, squares = (torch.cat([zero, part.cumsum(dim=1)], dim=1) for part in (centered, centered.square()))
    count = torch.arange(1, n + 1, dtype=values.dtype) - torch.arange(n, dtype=values.dtype)[:, None]
    total = sums[:, None, 1:] - sums[:, :-1, None]
    costs = squares[:, None, 1:] - squares[:, :-1, None] - total.square() / count.clamp_min(1)
    return torch.where(count >= 1, costs.clamp_min(0), torch.inf)
