"""DeepSight: look into the models for clients with homogeneous data, and reject the clusters that they belong to.

Rieger, Nguyen, Miettinen, Sadeghi. DeepSight: Mitigating Backdoor Attacks in Federated Learning Through Deep Model
Inspection. NDSS 2022. https://arxiv.org/abs/2201.00763

The rule follows a public re-implementation; no code by the authors was found. Their settings of the clustering could
not be confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Cohort, Filter, Judgment, Layout, Need, State, derive
from ..ops import clip_rows, cosine_distances, density_clusters, median_of, row_norms

SMALLEST_SHARE = 0.01  # of the largest update energy, from which a class counts as trained
SMALLEST_PROBABILITY = 1e-6  # added to the global model's, so that no class divides by zero


@dataclass(frozen=True)
class DeepSight(Filter):
    """Cluster clients by what their models learned; reject clusters in which a third are suspicious; clip the others.

    The update energy of a class is the sum of |Δ| over its weights and bias in the classifier; squared, as a share of
    all classes, it tells how much the client trained that class. A client is suspicious if at most half as many
    classes as the median client's exceed max(1 %, 1 / classes) of its largest share. Clients are clustered by these
    shares, by the ratio of their and the global model's predictions on random images, and by the cosines of their bias
    updates. The final clusters are those of clients that these three put together. A client of no cluster is judged
    alone. Accepted updates are clipped to the median norm of all. The score is the share of suspicious clients in a
    client's cluster.

    Attackers whose data hold many classes are not suspicious, and untargeted attacks pass. Honest clients with data of
    one class are rejected.

    Args:
        samples: The number of random images per draw. 0 leaves the predictions out, and the server need not run models.
        draws: How often random images are drawn.
        max_suspicious: The share of suspicious clients from which a cluster is rejected.
        min_cluster_size: The least number of clients of a cluster.
        min_samples: The neighbor that must be near for a client to be in a dense region.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.INFERENCE})

    samples: int = 20_000
    draws: int = 3
    max_suspicious: float = 1 / 3
    min_cluster_size: int = 2
    min_samples: int = 1

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise ValueError(f"DeepSight.samples must be at least 0, got {self.samples}")
        for name, least in (("draws", 1), ("min_cluster_size", 2), ("min_samples", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"DeepSight.{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.max_suspicious <= 1:
            raise ValueError(f"DeepSight.max_suspicious must be in (0, 1], got {self.max_suspicious}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        shares = energy_shares(cohort)
        kinds = [self._separate(_distances(shares)), self._separate(cosine_distances(_bias_updates(cohort)))]
        if self.samples:
            seeds = [derive(cohort.seed, "deepsight", i) for i in range(self.draws)]
            ratios = [prediction_ratios(cohort, self.samples, seed) for seed in seeds]
            kinds.append(torch.stack([self._separate(_distances(ratio)) for ratio in ratios]).mean(dim=0))
        clusters = self._cluster(torch.stack(kinds).mean(dim=0), allow_single_cluster=True)
        suspicion = _mean_by_cluster(is_suspicious(shares), clusters)
        norms = row_norms(cohort.trainable())
        clipped = clip_rows(cohort.updates, norms, float(median_of(norms)))
        return Judgment(suspicion, suspicion < self.max_suspicious, clipped), state

    def _cluster(self, distances: Float[Tensor, "n n"], *, allow_single_cluster: bool) -> Int[Tensor, " n"]:
        return density_clusters(
            distances, self.min_cluster_size, self.min_samples, allow_single_cluster=allow_single_cluster
        )

    def _separate(self, distances: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        """0 for two clients of the same cluster, 1 for others; a client of no cluster is apart from all."""
        return (~_same_cluster(self._cluster(distances, allow_single_cluster=False))).double()


def energy_shares(cohort: Cohort) -> Float[Tensor, "n classes"]:
    """Normalized update energies: how much each client trained each class. All zero for a client that trained none."""
    head, _ = cohort.layer()
    n_classes = dict(cohort.layout.shapes)[cohort.layout.require_head()][0]
    energy = head.double().abs().view(len(cohort), n_classes, -1).sum(dim=2)
    bias = find_bias(cohort.layout)
    if bias is not None:
        energy = energy + cohort.layer(bias)[0].double().abs()
    largest = energy.amax(dim=1, keepdim=True)
    squares = (energy / torch.where(largest > 0, largest, 1)).square()  # of numbers up to 1: they cannot overflow
    total = squares.sum(dim=1, keepdim=True)
    return squares / torch.where(total > 0, total, 1)


def is_suspicious(shares: Float[Tensor, "n classes"]) -> Bool[Tensor, " n"]:
    """Whether a client trained at most half as many classes as the median client."""
    limit = max(SMALLEST_SHARE, 1 / shares.shape[1]) * shares.amax(dim=1, keepdim=True)
    trained = (shares > limit).sum(dim=1).double()
    return (trained <= median_of(trained) / 2) & (trained < median_of(trained))


def prediction_ratios(cohort: Cohort, samples: int, seed: int) -> Float[Tensor, "n classes"]:
    """The mean over random images of the probability of each class in a client's model, divided by the global one's."""
    answers = cohort.trusted.predict_random(cohort.params, cohort.updates, samples, seed)
    probabilities = answers.double().softmax(dim=2).nan_to_num(0.0)  # zeros where answers are not numbers
    return (probabilities[1:] / (probabilities[0] + SMALLEST_PROBABILITY)).mean(dim=1)


def find_bias(layout: Layout) -> str | None:
    """The name of the classifier's bias, if it has one that is trained."""
    head = layout.require_head()
    name = head.removesuffix("weight") + "bias"
    n_classes = dict(layout.shapes)[head][0]
    return name if name in layout.trainable and dict(layout.shapes)[name] == (n_classes,) else None


def _bias_updates(cohort: Cohort) -> Float[Tensor, "n k"]:
    """The updates of the classifier's bias; of its weights where it has none."""
    return cohort.layer(find_bias(cohort.layout))[0]


def _distances(points: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    distances: Tensor = torch.linalg.vector_norm(points[:, None] - points, dim=2)
    return distances


def _same_cluster(clusters: Int[Tensor, " n"]) -> Bool[Tensor, "n n"]:
    together = (clusters[:, None] == clusters) & (clusters >= 0)
    return together.fill_diagonal_(True)


def _mean_by_cluster(values: Bool[Tensor, " n"], clusters: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    together = _same_cluster(clusters).double()
    return together @ values.double() / together.sum(dim=1)
