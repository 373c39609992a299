"""PCA clusters: project last-layer updates to two dimensions, split them in two clusters, reject the smaller one.

Tolpegin, Truex, Gursoy, Liu. Data Poisoning Attacks Against Federated Learning Systems. ESORICS 2020.
https://arxiv.org/abs/2007.08432

The authors collect updates over many rounds, and a person inspects the plot. Here every round is judged
independently, by two-means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, Layout, State


@dataclass(frozen=True)
class PCAClusters(Filter):
    """Run two-means on the first two principal components of the standardized last-layer updates; keep the majority.

    There is always a smaller cluster, also without an attack. Clusters of equal size are both accepted. The score is
    how much nearer an update is to the smaller cluster than to the larger one.

    Args:
        source: Compare only the weights of this class, as the authors do. None compares all.
        layer: The tensor to compare. None is the classifier's weight matrix.
    """

    source: int | None = None
    layer: str | None = None

    def select_layers(self, layout: Layout) -> tuple[str, ...]:
        return (layout.find_layer(self.layer),)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        points = principal_components(standardize(self._select_updates(cohort)))
        second = two_means(points)
        n_second = int(second.sum())
        if n_second in (0, len(cohort)) or 2 * n_second == len(cohort):
            accepted, scores = torch.ones_like(second), points.new_zeros(len(cohort))
        else:
            accepted = ~second if 2 * n_second < len(cohort) else second
            larger, smaller = points[accepted].mean(dim=0), points[~accepted].mean(dim=0)
            scores = (points - larger).norm(dim=1) - (points - smaller).norm(dim=1)
        return Judgment(scores, accepted, points=points), state

    def _select_updates(self, cohort: Cohort) -> Float[Tensor, "n k"]:
        updates, _ = cohort.layer(self.layer)
        if self.source is None:
            return updates
        shape = dict(cohort.layout.shapes)[cohort.layout.find_layer(self.layer)]
        if not 0 <= self.source < shape[0]:
            raise ValueError(f"PCAClusters.source must be a class below {shape[0]}, got {self.source}")
        return updates.reshape(len(cohort), *shape)[:, self.source].flatten(1)


def standardize(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Scales every column to mean 0 and standard deviation 1, in float64; a constant column becomes 0."""
    wide = rows.double()
    scale = wide.abs().amax(dim=0)
    wide = wide / torch.where(scale > 0, scale, 1)  # first, so that no square overflows
    centered = wide - wide.mean(dim=0)
    deviation = centered.square().mean(dim=0).sqrt()
    varies = deviation > 1e-12
    return torch.where(varies, centered / torch.where(varies, deviation, 1), 0)


def principal_components(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n 2"]:
    """The rows' coordinates along the two directions of largest variance, signed so that their skewness is positive."""
    left, lengths, _ = torch.linalg.svd(rows, full_matrices=False)
    points: Tensor = torch.nn.functional.pad(left * lengths, (0, 2))[:, :2]  # a single client has one component
    skewness = (points * points * points).sum(dim=0)
    return points * torch.where(skewness < 0, -1, 1)


def two_means(points: Float[Tensor, "n 2"]) -> Bool[Tensor, " n"]:
    """Which points belong to the second of two clusters. They start at the two ends of the first component."""
    first, second = points[points[:, 0].argmin()], points[points[:, 0].argmax()]
    members = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for _ in range(100):
        nearer: Tensor = (points - second).norm(dim=1) < (points - first).norm(dim=1)
        if torch.equal(nearer, members) or not bool(nearer.any()):
            return nearer
        members, first, second = nearer, points[~nearer].mean(dim=0), points[nearer].mean(dim=0)
    return members
