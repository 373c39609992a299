"""A 95 % interval for a mean over a few seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

# The 97.5 % quantile of Student's t distribution with 1, 2, … 29 degrees of freedom.
QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452),
)


def find_interval(values: Sequence[float], lowest: float, highest: float) -> tuple[float, float] | None:
    """Student's t interval around the mean, within what is possible; None for a single value, which has no spread.

    It takes the seeds for a sample from a normal distribution. Beyond 30 values the quantile of 30 is used, which is a
    little too wide.
    """
    if len(values) < 2:
        return None
    half = QUANTILES[min(len(values) - 2, len(QUANTILES) - 1)] * stdev(values) / sqrt(len(values))
    return max(lowest, fmean(values) - half), min(highest, fmean(values) + half)
