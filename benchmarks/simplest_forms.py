"""Every rule in the fewest lines of torch that give the right result, as a measure for how fast it could be written.

They have no state, no checks for hostile numbers and no bounds on memory. Distances are computed without matrix
products: in float32 those cancel for rows that are near each other, and the result would be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosdefense import Cohort
from cosdefense.core import generator

Form = Callable[[Cohort], Tensor]
SHARE = 0.2  # of attackers that rules are told to expect


def clip(rows: Tensor, limit: Tensor | float) -> Tensor:
    clipped: Tensor = rows * (limit / rows.norm(dim=1)).clamp(max=1)[:, None]
    return clipped


def true_median(values: Tensor) -> Tensor:
    ordered, n = values.sort(dim=0).values, len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def distances(rows: Tensor, p: float = 2.0) -> Tensor:
    return torch.cdist(rows, rows, p, compute_mode="donot_use_mm_for_euclid_dist")


def cosine_matrix(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return unit @ unit.T


def z(values: Tensor) -> Tensor:
    return (values - true_median(values)).abs() / values.std(correction=0)


def trimmed_mean(rows: Tensor) -> Tensor:
    f = int(SHARE * len(rows))
    return rows.sort(dim=0).values[f : len(rows) - f].mean(dim=0)


def krum_scores(rows: Tensor) -> Tensor:
    near = distances(rows).square().sort(dim=1).values
    return near[:, 1 : len(rows) - int(SHARE * len(rows)) - 1].sum(dim=1)


def mixed(rows: Tensor) -> Tensor:
    keep = len(rows) - int(SHARE * len(rows))
    chosen = distances(rows).topk(keep, largest=False).indices
    return torch.zeros(len(rows), len(rows)).scatter_(1, chosen, 1 / keep) @ rows


def arc(c: Cohort) -> Tensor:
    n, f = len(c), int(SHARE * len(c))
    limit = c.updates.norm(dim=1).sort(descending=True).values[2 * f * (n - f) // n]
    return trimmed_mean(mixed(clip(c.updates, limit)))


def bucketing(c: Cohort) -> Tensor:
    order = torch.randperm(len(c), generator=generator(c.seed, "bucketing")).argsort()
    return true_median(torch.stack([group.mean(dim=0) for group in torch.split(c.updates[order], 2)]))


def rfa(c: Cohort) -> Tensor:
    center = c.updates.mean(dim=0)
    for _ in range(4):
        weights = 1 / (c.updates - center).norm(dim=1).clamp(min=1e-5)
        center = weights / weights.sum() @ c.updates
    return center


def rlr(c: Cohort) -> Tensor:
    agree = c.updates.sign().sum(dim=0).abs() >= 0.4 * len(c)
    return torch.where(agree, 1, -1) * c.updates.mean(dim=0)


def dnc(c: Cohort) -> Tensor:
    n, d = c.updates.shape
    drawn = torch.randperm(d, generator=generator(c.seed, "dnc", 0))[:10_000]
    some = c.updates[:, drawn]
    centered = some - some.mean(dim=0)
    direction = torch.linalg.svd(centered, full_matrices=False).Vh[0]
    kept = (centered @ direction).square().topk(n - int(SHARE * n), largest=False).indices
    return c.updates[kept].mean(dim=0)


def signguard(c: Cohort) -> Tensor:
    from sklearn.cluster import MeanShift, estimate_bandwidth

    rows, d = c.updates, c.updates.shape[1]
    norms = rows.norm(dim=1)
    middle = true_median(norms)
    start = int(torch.randint(d - d // 10 + 1, (), generator=generator(c.seed, "signguard")))
    signs = rows[:, start : start + d // 10].sign()
    shares = torch.stack([(signs == s).float().mean(dim=1) for s in (1, 0, -1)], dim=1)
    features = (shares / (shares.amax(dim=0) + 1e-8)).double().numpy()
    bandwidth = estimate_bandwidth(features, quantile=0.5)
    labels = torch.from_numpy(MeanShift(bandwidth=bandwidth, cluster_all=False).fit_predict(features))
    largest = labels == labels[labels >= 0].mode().values
    return clip(rows, middle)[largest & (0.1 * middle < norms) & (norms < 3 * middle)].mean(dim=0)


def distance_table(gaps: Tensor) -> npt.NDArray[np.float64]:
    """As scikit-learn wants it: symmetric to the last bit."""
    table: npt.NDArray[np.float64] = ((gaps + gaps.T) / 2).clamp(min=0).fill_diagonal_(0).double().numpy()
    return table


def majority(gaps: Tensor) -> Tensor:
    from sklearn.cluster import HDBSCAN

    judge = HDBSCAN(min_cluster_size=len(gaps) // 2 + 1, min_samples=1, allow_single_cluster=True,
                    metric="precomputed", copy=True)  # fmt: skip
    return torch.from_numpy(judge.fit_predict(distance_table(gaps))) == 0


def flame(c: Cohort) -> Tensor:
    kept = majority(1 - cosine_matrix((c.params + c.updates).double()))
    limit = true_median(c.updates.norm(dim=1))
    update = clip(c.updates, limit)[kept].mean(dim=0)
    return update + 0.001 * limit * torch.randn(len(update), generator=generator(c.seed, "noise"))


def freqfed(c: Cohort) -> Tensor:
    from scipy.fft import dct  # type: ignore[import-untyped]

    models = (c.params + c.updates).numpy()
    low = torch.from_numpy(dct(models, norm="ortho", axis=1)[:, : models.shape[1] // 2])
    return c.updates[majority(1 - cosine_matrix(low.double()))].mean(dim=0)


def multi_metrics(c: Cohort) -> Tensor:
    models = (c.params + c.updates).double()  # they differ by a thousandth of their norm
    norms = models.norm(dim=1)
    angles = (1 - cosine_matrix(models)).square().sum(dim=1)
    taxi, lengths = distances(models, 1.0).sum(dim=1), (norms[:, None] - norms).abs().sum(dim=1)
    found = torch.stack([angles, taxi, lengths], dim=1)
    found = found / found.std(dim=0)  # or their squares are too different in size for an inverse
    scores = (found @ torch.linalg.pinv(found.T.cov()) * found).sum(dim=1)
    return c.updates[scores.topk(max(1, int(0.3 * len(c))), largest=False).indices].mean(dim=0)


def lasa(c: Cohort) -> Tensor:
    rows = clip(c.updates, true_median(c.updates.norm(dim=1)))
    matrices = [c.layout.slices[name] for name, shape in c.layout.shapes if len(shape) in (2, 4)]
    wide = torch.cat([rows[:, where] for where in matrices], dim=1)
    kept = wide.shape[1] - int(0.3 * wide.shape[1] + 1e-9)
    limits = torch.stack([row.abs().kthvalue(wide.shape[1] - kept + 1).values for row in wide])
    for where in matrices:
        rows[:, where] *= rows[:, where].abs() >= limits[:, None]
    result = torch.empty_like(rows[0])
    for where in c.layout.slices.values():
        part = rows[:, where]
        purity = part.sign().sum(dim=1) / part.sign().abs().sum(dim=1).clamp(min=1)
        usual = (z(part.norm(dim=1)) < 1) & (z(purity) < 1)
        result[where] = part[usual if usual.any() else slice(None)].mean(dim=0)
    return result


def alignins(c: Cohort) -> Tensor:
    rows, largest = c.updates, int(0.3 * c.updates.shape[1])
    principal = rows.sign().sum(dim=0).sign()
    top = rows.abs().topk(largest, dim=1).indices
    shares = (rows.sign() == principal).gather(1, top).float().mean(dim=1)
    usual = (z(torch.cosine_similarity(rows.double(), c.params[None].double())) < 1) & (z(shares) < 1)
    return clip(rows[usual], true_median(rows[usual].norm(dim=1))).mean(dim=0)


def deepsight(c: Cohort) -> Tensor:
    """Without predictions."""
    from sklearn.cluster import HDBSCAN

    def apart(gaps: Tensor, single: bool = False) -> Tensor:
        judge = HDBSCAN(min_cluster_size=2, min_samples=2, allow_single_cluster=single, metric="precomputed", copy=True)
        labels = torch.from_numpy(judge.fit_predict(distance_table(gaps)))
        return ((labels[:, None] != labels) | (labels < 0)).double().fill_diagonal_(0)

    n, head, bias = len(c), c.layer()[0], c.layer("head.bias")[0]
    shares = (head.abs().view(n, 10, -1).sum(dim=2) + bias.abs()).square()
    shares = shares / shares.sum(dim=1, keepdim=True)
    trained = (shares > 0.1 * shares.amax(dim=1, keepdim=True)).sum(dim=1).float()
    together = 1 - apart((apart(distances(shares)) + apart(1 - cosine_matrix(bias))) / 2, single=True)
    suspicion = together @ (trained <= true_median(trained) / 2).double() / together.sum(dim=1)
    return clip(c.updates, true_median(c.updates.norm(dim=1)))[suspicion < 1 / 3].mean(dim=0)


def crfl(c: Cohort) -> Tensor:
    model = c.params + c.updates.mean(dim=0)
    noise = 0.01 * torch.randn(len(model), generator=generator(c.seed, "crfl"))
    return clip(model[None], 2.0)[0] - c.params + noise


def rffl(c: Cohort) -> Tensor:
    clipped = clip(c.updates, 0.5)
    torch.cosine_similarity(clipped, clipped.mean(dim=0)[None])  # for the reputations of the next round
    return clipped.mean(dim=0)


def foolsgold(c: Cohort) -> Tensor:
    similar = cosine_matrix(c.layer()[0]).fill_diagonal_(0)
    largest = similar.amax(dim=1)
    similar = torch.where(largest[:, None] < largest, similar * largest[:, None] / largest, similar)
    differs = (1 - similar.amax(dim=1)).clamp(0, 1)
    weights = (torch.logit(differs / differs.max()) + 0.5).clamp(0, 1)
    return weights / weights.sum() @ c.updates


def fedrola(c: Cohort) -> Tensor:
    """In the first round: suspicious clients count nothing, all others the same."""
    votes = torch.zeros(len(c))
    names = c.layout.trainable
    drawn = torch.multinomial(torch.ones(len(names), dtype=torch.float64), 3, generator=generator(c.seed, "fedrola"))
    for i in drawn.tolist():
        part = c.layer(names[i])[0]
        near = torch.cosine_similarity(part, part.mean(dim=0)[None]) >= 0.9
        votes += near if 2 * near.sum() < len(c) else 0
    return c.updates[(votes < votes.max()) | (votes == 0)].mean(dim=0)


def pca_clustering(c: Cohort) -> Tensor:
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    points = PCA(2).fit_transform(StandardScaler().fit_transform(c.layer()[0].numpy()))
    labels = torch.from_numpy(KMeans(2, n_init=10, random_state=0).fit_predict(points))
    return c.updates[labels == labels.mode().values].mean(dim=0)


def cosdefense(c: Cohort) -> Tensor:
    head, weights = c.layer()
    scores = torch.cosine_similarity(head, weights[None]).abs()
    return c.updates[scores < scores.mean()].mean(dim=0)


def centered_clipping(radius: float) -> Form:
    return lambda c: clip(c.updates, radius).mean(dim=0)


def noisy(c: Cohort, limit: float, std: float) -> Tensor:
    update = clip(c.updates, limit).mean(dim=0)
    return update + std * torch.randn(len(update), generator=generator(c.seed, "noise"))


FORMS: dict[str, Form] = {
    "fedavg": lambda c: c.updates.mean(dim=0),
    "median": lambda c: true_median(c.updates),
    "trimmed-mean": lambda c: trimmed_mean(c.updates),
    "bucketing": bucketing,
    "rlr": rlr,
    "lasa": lasa,
    "alignins": alignins,
    "cosdefense": cosdefense,
    "krum": lambda c: c.updates[krum_scores(c.updates).argmin()],
    "multi-krum": lambda c: c.updates[
        krum_scores(c.updates).topk(len(c) - int(SHARE * len(c)), largest=False).indices
    ].mean(dim=0),
    "nnm": lambda c: trimmed_mean(mixed(c.updates)),
    "arc": arc,
    "rfa": rfa,
    "dnc": dnc,
    "multi-metrics": multi_metrics,
    "signguard": signguard,
    "flame": flame,
    "freqfed": freqfed,
    "deepsight": deepsight,
    "pca-clustering": pca_clustering,
    "norm-clipping": lambda c: clip(c.updates, 2.0).mean(dim=0),
    "clipping-median": lambda c: true_median(clip(c.updates, 2.0)),
    "centered-clipping": centered_clipping(10.0),
    "weak-dp": lambda c: noisy(c, 5.0, 0.025),
    "central-dp": lambda c: noisy(c, 2.0, 2.0 / len(c)),
    "crfl": crfl,
    "rffl": rffl,
    "foolsgold": foolsgold,
    "fedrola": fedrola,
}
# Their own noise, draws or random starts: the results are not compared.
DIFFER = {"pca-clustering", "flame", "weak-dp", "central-dp", "dnc"}


def simplest(name: str, cohort: Cohort) -> Tensor:
    """The rule without rows that are not finite, which no correct form may count."""
    return FORMS[name](cohort.only(cohort.updates.isfinite().all(dim=1)))


def difference(one: Tensor, other: Tensor) -> float:
    """Relative to the length of the first."""
    return float((one - other).double().norm() / max(float(one.double().norm()), math.ulp(0)))
