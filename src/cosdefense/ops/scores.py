"""Statistics of one number per client. The order of the clients must not change a bit of them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .coordinatewise import median


def fraction_of(fraction: float, n: int) -> int:
    """`floor(fraction * n)`, robust to 0.29 * 100 == 28.999999999999996."""
    return math.floor(fraction * n + 1e-9)


def min_max(scores: Float[Tensor, " n"], tolerance: float = 0.0) -> Float[Tensor, " n"]:
    """Scales scores to [0, 1]; all zero when they lie within `tolerance` of each other."""
    low, high = scores.min(), scores.max()
    span = high - low
    return torch.where(span > tolerance, (scores - low) / torch.where(span > tolerance, span, 1), 0)


def mean_of(scores: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The mean, summed in order of size so that the order of the clients does not matter."""
    return scores.sort().values.mean()


def std_of(scores: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The population standard deviation, independent of the clients' order like `mean_of`."""
    return mean_of((scores - mean_of(scores)).square()).sqrt()


def keep_lowest(scores: Float[Tensor, "*rows n"], keep: int) -> Float[Tensor, "*rows n"]:
    """Weights for the `keep` lowest scores: 1 below the last one kept, and an equal share of the rest for its ties.

    The weights add up to `keep` (at most n). If all ties were kept, identical rows could never be dropped.
    """
    keep = min(keep, scores.shape[-1])
    last = scores.sort(dim=-1).values[..., keep - 1 : keep]
    below, tied = scores < last, scores == last
    share = (keep - below.sum(dim=-1, keepdim=True)).double() / tied.sum(dim=-1, keepdim=True)
    return below + tied * share


def z_scores(scores: Float[Tensor, " n"], rounding: float = 1e-12) -> Float[Tensor, " n"]:
    """|score − median| in standard deviations; zero where these are no larger than `rounding` of the largest score."""
    scale = scores.abs().max()
    deviation, center = std_of(scores / torch.where(scale > 0, scale, 1)) * scale, median_of(scores)
    varies = deviation > rounding * scale
    return torch.where(varies, (scores - center).abs() / torch.where(varies, deviation, 1), 0)


def round_scores(scores: Float[Tensor, " n"], unit: float) -> Float[Tensor, " n"]:
    """Rounds to multiples of `unit` largest scores, so that scores that differ by rounding errors are equal."""
    unit = unit * float(scores.abs().max()) or 1.0
    return (scores / unit).round() * unit


def median_of(scores: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return median(scores[:, None])[0]
