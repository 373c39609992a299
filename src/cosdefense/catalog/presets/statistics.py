"""Presets that decide by statistics of single coordinates, layers or scores."""

from __future__ import annotations

from ...aggregators import RLR, Bucketing, Mean, Median, TrimmedMean
from ...core import Defense
from ...filters import LASA, AlignIns, CosDefense
from ...filters.cosdefense import Threshold


def fedavg() -> Defense:
    """No defense: the plain mean."""
    return Defense((), Mean())


def median() -> Defense:
    """The coordinate-wise median."""
    return Defense((), Median())


def trimmed_mean(contamination: float = 0.3) -> Defense:
    """The coordinate-wise mean without extremes.

    Args:
        contamination: The share of values that is dropped at each end.
    """
    return Defense((), TrimmedMean(contamination))


def bucketing(size: int = 2) -> Defense:
    """The coordinate-wise median of the averages of random groups.

    Args:
        size: The number of updates in a group.
    """
    return Defense((), Bucketing(size=size))


def rlr(agreement: float = 0.4) -> Defense:
    """The mean, reversed in coordinates where too few clients agree on the sign.

    Args:
        agreement: The least net share of clients with the same sign.
    """
    return Defense((), RLR(agreement))


def lasa(sparsity: float = 0.3, dense: bool = False) -> Defense:
    """Clip and sparsify updates, and average in every tensor the clients that are usual there.

    Args:
        sparsity: The share of coordinates that is set to zero.
        dense: Whether clipped updates are averaged, and sparse ones used for the tests only.
    """
    return Defense((LASA(sparsity, dense=dense),), Mean())


def alignins(fraction: float = 0.3, max_cosine: float = 1.0, max_sign: float = 1.0) -> Defense:
    """Reject updates of unusual direction or signs, clip the others, then the mean.

    Args:
        fraction: The share of coordinates, those with the largest magnitudes, whose signs are compared.
        max_cosine: How far the cosine with the model may be from the median, in standard deviations.
        max_sign: How far the share of signs may be from the median, in standard deviations.
    """
    return Defense((AlignIns(fraction, max_cosine, max_sign),), Mean())


def cosdefense(layer: str | None = None, threshold: Threshold = "mean", k: float = 1.0) -> Defense:
    """Reject updates aligned with the last layer, then the mean.

    Args:
        layer: The name of the tensor that is looked at. None: the classifier's weight matrix.
        threshold: The score from which clients are rejected: the mean, the mean + k standard deviations, or
            the median + k scaled median absolute deviations.
        k: How many deviations are accepted. Not used by the threshold "mean".
    """
    return Defense((CosDefense(layer, threshold, k),), Mean())
