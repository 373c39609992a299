"""Presets that divide clients into groups and keep some of them."""

from __future__ import annotations

from ...aggregators import Mean, NoisyMean, NormLimitedMean, TaperedMean, TypicalNormMean
from ...core import Defense
from ...filters import (
    FLAME,
    DeepSight,
    FreqFed,
    NearDuplicates,
    NormLimit,
    OpposedClusters,
    PCAClusters,
    SignGuard,
    SupportedReferences,
    TwoReferences,
)
from ...filters.flame import Compared
from ...filters.freqfed import Transformed
from ...filters.signguard import Variant


def signguard(variant: Variant = "plain") -> Defense:
    """Drop updates of unusual norm or with unusual signs, clip the others, then the mean.

    Args:
        variant: "sim" also looks at the cosine with the server's last step, "dist" at the distance to it.
    """
    return Defense((SignGuard(variant),), Mean())


def flame(compared: Compared = "models", noise: float = 0.001) -> Defense:
    """Keep the largest group of models that point the same way, clip them, then the mean with a little noise.

    Args:
        compared: What is compared: whole models, updates, or the classifiers of the models.
        noise: The standard deviation of the noise, in norms that updates are clipped to. The default is that of three
            public implementations, too little for a privacy guarantee.
    """
    return Defense((FLAME(compared),), NoisyMean(noise, relative=True))


def freqfed(transformed: Transformed = "models") -> Defense:
    """Keep the largest group of models whose low frequencies point the same way, then the mean.

    Args:
        transformed: Whether models or updates are transformed.
    """
    return Defense((FreqFed(transformed),), Mean())


def deepsight(samples: int = 20_000, draws: int = 3, max_suspicious: float = 1 / 3) -> Defense:
    """Reject clusters of models that were trained on few classes, clip the others, then the mean.

    Args:
        samples: The number of random images that models are run on. 0 runs none, and compares updates only.
        draws: How often random images are drawn.
        max_suspicious: The share of suspicious clients from which a cluster is rejected.
    """
    return Defense((DeepSight(samples, draws, max_suspicious),), Mean())


def pca_clustering(source: int | None = None, layer: str | None = None) -> Defense:
    """Split last-layer updates into two groups, reject the smaller, then the mean.

    Args:
        source: The class whose weights are compared. None: the weights of all classes.
        layer: The name of the tensor that is compared. None: the classifier's weight matrix.
    """
    return Defense((PCAClusters(source, layer),), Mean())


def opposed_clusters(min_opposition: float = 0.25, max_ratio: float = 2.0, max_mean_ratio: float = 1.2) -> Defense:
    """Limit norms, count near-duplicates once, reject the weaker of two opposed clusters, then a mean of limited norm.

    The project's own defense before `two-references`; docs/factions-history.md says how it fails.

    Args:
        min_opposition: How negative the mean cosine between two clusters must be for one of them to be
            rejected.
        max_ratio: The largest norm of an update that is not rejected, in running median norms.
        max_mean_ratio: The largest norm of the mean, in running averages of that norm.
    """
    return Defense(
        (NormLimit(max_ratio), NearDuplicates(), OpposedClusters(min_opposition)), NormLimitedMean(max_mean_ratio)
    )


def two_references(tolerance: float = 0.3, taper: float = 1.5, max_mean_ratio: float = 1.2) -> Defense:
    """Reject what opposes both the recent updates and the model, then a mean in which long updates count less.

    The project's own defense before `factions`. Unlike `factions`, it works on secret updates (docs/secure.md).

    Args:
        tolerance: How far an update may oppose the two references, in typical cosines of the others.
        taper: From how many typical norms on an update counts less than a typical one.
        max_mean_ratio: The largest norm of the mean, in running averages of that norm.
    """
    return Defense((TwoReferences(tolerance),), TaperedMean(taper, max_mean_ratio))


def factions(low: float = 0.5, high: float = 0.57, max_mean_ratio: float = 1.2) -> Defense:
    """Reject what opposes the model, its movement or the recent updates, then a mean of clipped updates.

    The project's own defense; docs/factions.md describes it.

    Args:
        low: Up to this share of recent updates that agree with it, a reference is as tolerant as can be.
        high: From this share on it is as strict as can be.
        max_mean_ratio: The largest norm of the mean, in running averages of that norm.
    """
    return Defense((SupportedReferences(low, high),), TypicalNormMean(max_mean_ratio))
