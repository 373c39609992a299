"""Named defenses, ready to use: the compositions that papers give one name."""

from __future__ import annotations

from typing import Literal

from ..aggregators import CRFL, RFA, RLR, Bucketing, Mean, Median, NoisyMean, NormLimitedMean, TrimmedMean
from ..core import Defense, Filter
from ..filters import (
    ARC,
    FLAME,
    LASA,
    NNM,
    RFFL,
    AlignIns,
    ByGARS,
    ByGARSPlusPlus,
    Clip,
    CosDefense,
    DeepSight,
    DiverseFL,
    DnC,
    FedRoLA,
    FLDetector,
    FLTrust,
    FoolsGold,
    FreqFed,
    Krum,
    MedianClip,
    MultiKrum,
    MultiMetrics,
    NearDuplicates,
    NormLimit,
    OpposedClusters,
    PCAClusters,
    QuantileClip,
    Sageflow,
    SignGuard,
)
from ..filters.cosdefense import Threshold
from ..filters.fedrola import Similarity
from ..filters.flame import Compared
from ..filters.freqfed import Transformed
from ..filters.rffl import Start
from ..filters.signguard import Variant
from ..hooks import FLWBC, AdversarialTraining

MaxNorm = float | Literal["median", "quantile"]


def clip_to(max_norm: MaxNorm) -> Filter:
    """Clip updates to a given norm, to the running median norm, or to the published adaptive quantile of norms."""
    if isinstance(max_norm, str):
        return MedianClip() if max_norm == "median" else QuantileClip()
    return Clip(max_norm)


def fedavg() -> Defense:
    """No defense: the plain mean."""
    return Defense((), Mean())


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


def median() -> Defense:
    """The coordinate-wise median."""
    return Defense((), Median())


def trimmed_mean(contamination: float = 0.3) -> Defense:
    """The coordinate-wise mean without extremes.

    Args:
        contamination: The share of values that is dropped at each end.
    """
    return Defense((), TrimmedMean(contamination))


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


def bucketing(size: int = 2) -> Defense:
    """The coordinate-wise median of the averages of random groups.

    Args:
        size: The number of updates in a group.
    """
    return Defense((), Bucketing(size=size))


def rfa(steps: int = 4, smoothing: float = 1e-5) -> Defense:
    """A few steps from the mean towards the geometric median.

    Args:
        steps: The largest number of steps.
        smoothing: The least distance that counts.
    """
    return Defense((), RFA(steps, smoothing))


def rlr(agreement: float = 0.4) -> Defense:
    """The mean, reversed in coordinates where too few clients agree on the sign.

    Args:
        agreement: The least net share of clients with the same sign.
    """
    return Defense((), RLR(agreement))


def dnc(contamination: float = 0.3, iterations: int = 1, coordinates: int = 10_000, filter: float = 1.0) -> Defense:
    """Drop the updates that stand out most along the first principal direction, then the mean.

    Args:
        contamination: The expected share of malicious clients.
        iterations: How often coordinates are drawn.
        coordinates: How many are drawn at a time.
        filter: How many updates are dropped, in expected malicious clients.
    """
    return Defense((DnC(contamination, iterations, coordinates, filter),), Mean())


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


def multi_metrics(share: float = 0.3) -> Defense:
    """Keep the clients whose models are unusual in none of three distances, then the mean.

    Args:
        share: The share of clients that is kept.
    """
    return Defense((MultiMetrics(share),), Mean())


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


def crfl(start: float = 2.0, growth: float = 0.1, max_norm: float = 15.0, std: float = 0.01) -> Defense:
    """The mean; the new model is clipped, and gets noise.

    Args:
        start: The largest norm of the model in the first round.
        growth: How much the largest norm grows per round.
        max_norm: What it grows to.
        std: The standard deviation of the noise in every coordinate.
    """
    return Defense((), CRFL(start, growth, max_norm, std))


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


def clipping_median(max_norm: MaxNorm = 2.0) -> Defense:
    """Clip every update, then the coordinate-wise median: the CosDefense paper's strongest baseline.

    Args:
        max_norm: The norm that updates are clipped to, "median" or "quantile". The default is the paper's.
    """
    return Defense((clip_to(max_norm),), Median())


def norm_clipping(max_norm: MaxNorm = 2.0) -> Defense:
    """Clip every update, then the mean.

    Args:
        max_norm: The norm that updates are clipped to, "median" or "quantile".
    """
    return Defense((clip_to(max_norm),), Mean())


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


def pca_clustering(source: int | None = None, layer: str | None = None) -> Defense:
    """Split last-layer updates into two groups, reject the smaller, then the mean.

    Args:
        source: The class whose weights are compared. None: the weights of all classes.
        layer: The name of the tensor that is compared. None: the classifier's weight matrix.
    """
    return Defense((PCAClusters(source, layer),), Mean())


def fl_wbc(strength: float = 0.4) -> Defense:
    """Clients add noise where training would not undo a past attack; the server takes the mean.

    Args:
        strength: The scale of the Laplace noise.
    """
    return Defense((), Mean(), (FLWBC(strength),))


def fat(epsilon: float = 0.1, steps: int = 10, step_size: float | None = None) -> Defense:
    """Clients train on adversarial images; the server takes the mean.

    Args:
        epsilon: The largest change of a pixel.
        steps: How many steps of gradient ascent find the change.
        step_size: The size of one step. None: 2.5 · epsilon / steps.
    """
    return Defense((), Mean(), (AdversarialTraining(epsilon, steps, step_size),))


def cosdefense(layer: str | None = None, threshold: Threshold = "mean", k: float = 1.0) -> Defense:
    """Reject updates aligned with the last layer, then the mean.

    Args:
        layer: The name of the tensor that is looked at. None: the classifier's weight matrix.
        threshold: The score from which clients are rejected: the mean, the mean + k standard deviations, or
            the median + k scaled median absolute deviations.
        k: How many deviations are accepted. Not used by the threshold "mean".
    """
    return Defense((CosDefense(layer, threshold, k),), Mean())


def factions(min_opposition: float = 0.25, max_ratio: float = 2.0, max_mean_ratio: float = 1.2) -> Defense:
    """Limit norms, count near-duplicates once, reject the weaker of two opposed clusters, then a mean of limited norm.

    The project's own defense; docs/factions.md describes it.

    Args:
        min_opposition: How negative the mean cosine between two clusters must be for one of them to be
            rejected.
        max_ratio: The largest norm of an update that is not rejected, in running median norms.
        max_mean_ratio: The largest norm of the mean, in running averages of that norm.
    """
    return Defense(
        (NormLimit(max_ratio), NearDuplicates(), OpposedClusters(min_opposition)), NormLimitedMean(max_mean_ratio)
    )
