"""Presets that judge a client by its earlier rounds."""

from __future__ import annotations

from ...aggregators import Mean
from ...core import Defense
from ...filters import RFFL, FedRoLA, FLDetector, FoolsGold
from ...filters.fedrola import Similarity
from ...filters.rffl import Start
from .clipping import MaxNorm, clip_to


def rffl(
    max_norm: MaxNorm = 0.5,
    decay: float = 0.95,
    threshold: float = 1 / 3,
    warm_up: int = 10,
    start: Start = "agreement",
) -> Defense:
    """Clip every update, then a mean weighted by reputation; clients of low reputation are removed for good.

    Args:
        max_norm: The norm that updates are clipped to, "median" or "quantile". The default is the authors' for MNIST;
            for CIFAR-10 theirs is 0.15. Where updates are shorter, it has no effect.
        decay: How much of a reputation is kept from round to round.
        threshold: The reputation below which a client is removed, as a fraction of the fair share 1 / n.
        warm_up: How many rounds a client takes part in before it can be removed.
        start: What a new client's reputation starts from: the agreement of its first round, or the average share.
    """
    return Defense((clip_to(max_norm), RFFL(decay, threshold, warm_up, start=start)), Mean())


def foolsgold(head_only: bool = True, capacity: int = 1000) -> Defense:
    """A mean in which clients that keep resembling each other count little.

    Args:
        head_only: Whether only the classifier's weights are compared, as the authors do.
        capacity: How many clients are remembered.
    """
    return Defense((FoolsGold(head_only, capacity),), Mean())


def fedrola(threshold: float = 0.9, layers: int = 3, similarity: Similarity = "mean") -> Defense:
    """A mean in which clients that are often too similar to others in some layers count little.

    Args:
        threshold: The similarity from which a client is suspicious in a tensor.
        layers: How many tensors are drawn per round.
        similarity: Whether similarity is the cosine with the mean update, or with the two most similar clients.
    """
    return Defense((FedRoLA(threshold, layers, similarity),), Mean())


def fldetector(window: int = 10) -> Defense:
    """Remove clients whose updates do not follow from their earlier ones, then the mean.

    Args:
        window: How many rounds prediction errors are averaged over, and how many steps of the model are remembered.
    """
    return Defense((FLDetector(window),), Mean())
