"""Presets that compare clients with data at the server."""

from __future__ import annotations

from ...aggregators import Mean
from ...core import Defense
from ...filters import ByGARS, ByGARSPlusPlus, DiverseFL, FLTrust, Sageflow


def fltrust(global_rate: float = 1.0) -> Defense:
    """A mean weighted by agreement with an update computed on the server's own data.

    Args:
        global_rate: How long the mean's rows are, in norms of the server's own update.
    """
    return Defense((FLTrust(global_rate),), Mean())


def bygars(steps: int = 3, rate: float = 0.05) -> Defense:
    """A mean weighted by signed reputations, which are computed on the server's data in every round.

    Args:
        steps: How many steps of gradient ascent find the reputations.
        rate: The step size.
    """
    return Defense((ByGARS(steps, rate),), Mean())


def bygars_plus_plus(rate: float = 0.1, capacity: int = 10_000) -> Defense:
    """A mean weighted by signed reputations that are remembered per client.

    Args:
        rate: How much one round changes a reputation.
        capacity: How many clients are remembered.
    """
    return Defense((ByGARSPlusPlus(rate, capacity),), Mean())


def sageflow(max_entropy: float = 1.0, delta: float = 1.0, wait_for_confident_model: bool = True) -> Defense:
    """Reject models that are undecided about public data, then a mean weighted by their loss on it.

    Args:
        max_entropy: The mean entropy, in nats, from which a model is rejected.
        delta: The power of the loss by which weights are divided.
        wait_for_confident_model: Whether nobody is rejected while the global model itself has a higher
            entropy.
    """
    return Defense((Sageflow(max_entropy, delta, wait_for_confident_model),), Mean())


def diversefl(min_cosine: float = 0.0, min_ratio: float = 0.5, max_ratio: float = 2.0) -> Defense:
    """Reject updates unlike what a sample of the client's own data leads to, then the mean.

    Args:
        min_cosine: The least cosine between an update and its guide.
        min_ratio: The least norm of an update, in norms of its guide.
        max_ratio: The largest norm of an update, in norms of its guide.
    """
    return Defense((DiverseFL(min_cosine, min_ratio, max_ratio),), Mean())
