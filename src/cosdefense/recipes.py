"""Named defenses, ready to use: the compositions that papers give one name."""

from __future__ import annotations

from .aggregators import Mean, Median, TrimmedMean
from .defense import Defense
from .filters import Clip, CosDefense, Krum
from .filters.cosdefense import Threshold


def fedavg() -> Defense:
    """No defense: the plain mean."""
    return Defense((), Mean())


def krum(contamination: float = 0.3) -> Defense:
    """The one update closest to its neighbours."""
    return Defense((Krum(contamination, keep=1),), Mean())


def multi_krum(contamination: float = 0.3, keep: int | None = None) -> Defense:
    """The mean of the updates closest to their neighbours."""
    return Defense((Krum(contamination, keep=keep),), Mean())


def median() -> Defense:
    """The coordinate-wise median."""
    return Defense((), Median())


def trimmed_mean(contamination: float = 0.3) -> Defense:
    """The coordinate-wise mean without extremes."""
    return Defense((), TrimmedMean(contamination))


def clipping_median(max_norm: float = 2.0) -> Defense:
    """Clip every update, then the coordinate-wise median: the CosDefense paper's strongest baseline."""
    return Defense((Clip(max_norm),), Median())


def norm_clipping(max_norm: float = 2.0) -> Defense:
    """Clip every update, then the mean."""
    return Defense((Clip(max_norm),), Mean())


def cosdefense(layer: str | None = None, threshold: Threshold = "mean", k: float = 1.0) -> Defense:
    """Reject updates aligned with the last layer, then the mean."""
    return Defense((CosDefense(layer, threshold, k),), Mean())
