"""Presets that decide by distances between updates, or by the directions in which updates differ."""

from __future__ import annotations

from ...aggregators import RFA, Mean, TrimmedMean
from ...core import Defense
from ...filters import ARC, NNM, DnC, Krum, MultiKrum, MultiMetrics


def krum(contamination: float = 0.3) -> Defense:
    """The one update closest to its neighbors.

    Args:
        contamination: The expected share of malicious clients.
    """
    return Defense((Krum(contamination),), Mean())


def multi_krum(contamination: float = 0.3, keep: int | None = None) -> Defense:
    """The mean of the updates closest to their neighbors.

    Args:
        contamination: The expected share of malicious clients.
        keep: How many updates are kept. None: n − f, where f = floor(contamination · n).
    """
    return Defense((MultiKrum(contamination, keep),), Mean())


def nnm(contamination: float = 0.3) -> Defense:
    """Replace every update by the mean of its nearest neighbors, then the trimmed mean.

    Args:
        contamination: The expected share of malicious clients.
    """
    return Defense((NNM(contamination),), TrimmedMean(contamination))


def arc(contamination: float = 0.3) -> Defense:
    """Clip the longest updates, mix every update with its nearest neighbors, then the trimmed mean.

    Args:
        contamination: The expected share of malicious clients.
    """
    return Defense((ARC(contamination), NNM(contamination)), TrimmedMean(contamination))


def rfa(steps: int = 4, smoothing: float = 1e-5) -> Defense:
    """A few steps from the mean towards the geometric median.

    Args:
        steps: The largest number of steps.
        smoothing: The least distance that counts.
    """
    return Defense((), RFA(steps, smoothing))


def dnc(contamination: float = 0.3, iterations: int = 1, coordinates: int = 10_000, filter: float = 1.0) -> Defense:
    """Drop the updates that stand out most along the first principal direction, then the mean.

    Args:
        contamination: The expected share of malicious clients.
        iterations: How often coordinates are drawn.
        coordinates: How many are drawn at a time.
        filter: How many updates are dropped, in expected malicious clients.
    """
    return Defense((DnC(contamination, iterations, coordinates, filter),), Mean())


def multi_metrics(share: float = 0.3) -> Defense:
    """Keep the clients whose models are unusual in none of three distances, then the mean.

    Args:
        share: The share of clients that is kept.
    """
    return Defense((MultiMetrics(share),), Mean())
