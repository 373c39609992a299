"""Presets that limit norms and add noise."""

from __future__ import annotations

from typing import Literal

from ...aggregators import CRFL, CenteredClipping, Mean, Median, NoisyMean
from ...core import Defense, Filter
from ...filters import Clip, MedianClip, QuantileClip
from ...hooks import WorkerMomentum

MaxNorm = float | Literal["median", "quantile"]


def clip_to(max_norm: MaxNorm) -> Filter:
    """Clip updates to a given norm, to the running median norm, or to the published adaptive quantile of norms."""
    if isinstance(max_norm, str):
        return MedianClip() if max_norm == "median" else QuantileClip()
    return Clip(max_norm)


def norm_clipping(max_norm: MaxNorm = 2.0) -> Defense:
    """Clip every update, then the mean.

    Args:
        max_norm: The norm that updates are clipped to, "median" or "quantile".
    """
    return Defense((clip_to(max_norm),), Mean())


def clipping_median(max_norm: MaxNorm = 2.0) -> Defense:
    """Clip every update, then the coordinate-wise median: the CosDefense paper's strongest baseline.

    Args:
        max_norm: The norm that updates are clipped to, "median" or "quantile". The default is the paper's.
    """
    return Defense((clip_to(max_norm),), Median())


def centered_clipping(radius: float = 10.0, momentum: float = 0.9) -> Defense:
    """Clip updates around the last aggregate; clients send a running average of their updates.

    Args:
        radius: The largest distance of an update from the last aggregate. The default is the paper's, for gradients.
        momentum: How much of a client's average is kept from round to round. 0: clients send their updates.
    """
    return Defense((), CenteredClipping(radius), (WorkerMomentum(momentum),) if momentum else ())


def weak_dp(max_norm: MaxNorm = 5.0, std: float = 0.025) -> Defense:
    """Clip every update, then the mean with a little noise: too little for a privacy guarantee.

    Args:
        max_norm: The norm that updates are clipped to, "median" or "quantile".
        std: The standard deviation of the noise in every coordinate.
    """
    return Defense((clip_to(max_norm),), NoisyMean(std))


def central_dp(max_norm: MaxNorm = 2.0, noise_multiplier: float = 1.0) -> Defense:
    """Clip every update, then the mean with noise of noise_multiplier · max_norm / n.

    Args:
        max_norm: The norm that updates are clipped to, "median" or "quantile".
        noise_multiplier: The standard deviation of the noise of the sum, in units of max_norm. Where the norm is
            measured, in units of the longest clipped update.
    """
    if isinstance(max_norm, str):
        return Defense((clip_to(max_norm),), NoisyMean(noise_multiplier, of_sum=True, relative=True))
    return Defense((Clip(max_norm),), NoisyMean(noise_multiplier * max_norm, of_sum=True))


def crfl(start: float = 2.0, growth: float = 0.1, max_norm: float = 15.0, std: float = 0.01) -> Defense:
    """The mean; the new model is clipped, and gets noise.

    Args:
        start: The largest norm of the model in the first round.
        growth: How much the largest norm grows per round.
        max_norm: What it grows to.
        std: The standard deviation of the noise in every coordinate.
    """
    return Defense((), CRFL(start, growth, max_norm, std))
