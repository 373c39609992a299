"""Named defenses, ready to use: the compositions that papers give one name."""

from __future__ import annotations

from ..aggregators import Mean, Median, NoisyMean, NormLimitedMean, TrimmedMean
from ..core import Defense
from ..filters import (
    RFFL,
    ByGARS,
    ByGARSPlusPlus,
    Clip,
    CosDefense,
    DiverseFL,
    FLTrust,
    FoolsGold,
    Krum,
    MultiKrum,
    NearDuplicates,
    NormLimit,
    OpposedClusters,
    PCAClusters,
    Sageflow,
)
from ..filters.cosdefense import Threshold
from ..hooks import FLWBC, AdversarialTraining


def fedavg() -> Defense:
    """No defense: the plain mean."""
    return Defense((), Mean())


def krum(contamination: float = 0.3) -> Defense:
    """The one update closest to its neighbors."""
    return Defense((Krum(contamination),), Mean())


def multi_krum(contamination: float = 0.3, keep: int | None = None) -> Defense:
    """The mean of the updates closest to their neighbors."""
    return Defense((MultiKrum(contamination, keep),), Mean())


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


def weak_dp(max_norm: float = 5.0, std: float = 0.025) -> Defense:
    """Clip every update, then the mean with a little noise: too little for a privacy guarantee."""
    return Defense((Clip(max_norm),), NoisyMean(std))


def central_dp(max_norm: float = 2.0, noise_multiplier: float = 1.0) -> Defense:
    """Clip every update, then the mean with noise of noise_multiplier · max_norm / n."""
    return Defense((Clip(max_norm),), NoisyMean(noise_multiplier * max_norm, of_sum=True))


def rffl(max_norm: float = 0.5, decay: float = 0.95, threshold: float = 1 / 3, warm_up: int = 10) -> Defense:
    """Clip every update, then a mean weighted by reputation; the disreputable are removed for good.

    The norm is the authors' for MNIST; for CIFAR-10 theirs is 0.15.
    """
    return Defense((Clip(max_norm), RFFL(decay, threshold, warm_up)), Mean())


def foolsgold(head_only: bool = False, capacity: int = 1000) -> Defense:
    """A mean in which clients that keep resembling each other count little."""
    return Defense((FoolsGold(head_only, capacity),), Mean())


def fltrust() -> Defense:
    """A mean weighted by agreement with an update computed on the server's own data."""
    return Defense((FLTrust(),), Mean())


def bygars(steps: int = 3, rate: float = 0.05) -> Defense:
    """A mean weighted by signed reputations that are found anew on the server's data every round."""
    return Defense((ByGARS(steps, rate),), Mean())


def bygars_plus_plus(rate: float = 0.1, capacity: int = 10_000) -> Defense:
    """A mean weighted by signed reputations that are remembered per client."""
    return Defense((ByGARSPlusPlus(rate, capacity),), Mean())


def sageflow(max_entropy: float = 1.0, delta: float = 1.0, wait_for_confident_model: bool = True) -> Defense:
    """Reject models that are undecided about public data, then a mean weighted by their loss on it."""
    return Defense((Sageflow(max_entropy, delta, wait_for_confident_model),), Mean())


def diversefl(min_cosine: float = 0.0, min_ratio: float = 0.5, max_ratio: float = 2.0) -> Defense:
    """Reject updates unlike what a sample of the client's own data leads to, then the mean."""
    return Defense((DiverseFL(min_cosine, min_ratio, max_ratio),), Mean())


def pca_clustering(source: int | None = None, layer: str | None = None) -> Defense:
    """Split last-layer updates into two groups, reject the smaller, then the mean."""
    return Defense((PCAClusters(source, layer),), Mean())


def fl_wbc(strength: float = 0.4) -> Defense:
    """Clients shake what a past attack may have left behind; the server takes the mean."""
    return Defense((), Mean(), (FLWBC(strength),))


def fat(epsilon: float = 0.1, steps: int = 10, step_size: float | None = None) -> Defense:
    """Clients train on adversarial images; the server takes the mean."""
    return Defense((), Mean(), (AdversarialTraining(epsilon, steps, step_size),))


def cosdefense(layer: str | None = None, threshold: Threshold = "mean", k: float = 1.0) -> Defense:
    """Reject updates aligned with the last layer, then the mean."""
    return Defense((CosDefense(layer, threshold, k),), Mean())


def factions(min_opposition: float = 0.25, max_ratio: float = 2.0, max_mean_ratio: float = 1.2) -> Defense:
    """Clip to the usual length, count echoes once, reject the weaker of two quarreling camps, then a steady mean."""
    return Defense(
        (NormLimit(max_ratio), NearDuplicates(), OpposedClusters(min_opposition)), NormLimitedMean(max_mean_ratio)
    )
