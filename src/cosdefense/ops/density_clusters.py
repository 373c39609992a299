"""HDBSCAN for few points: clusters of any number and shape, independent of the order of the points.

Campello, Moulavi, Sander. Density-Based Clustering Based on Hierarchical Density Estimates. PAKDD 2013.

Public implementations merge two clusters at a time. Where distances are equal, their result depends on the order of the
points. Here clusters at the same distance merge at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

Points = npt.NDArray[np.int64]
Heights = npt.NDArray[np.float64]  # between all points: the distance at which two of them become connected
NO_CLUSTER = -1


@dataclass
class _Cluster:
    """A cluster of the hierarchy: the points it starts with, and what it ends in."""

    points: Points
    birth: float  # a density: 1 / distance
    exits: list[tuple[float, Points]] = field(default_factory=list)  # points that leave it, and at which density
    children: list[_Cluster] = field(default_factory=list)

    @property
    def stability(self) -> float:
        """The sum over its points of the range of densities in which they belong to it."""
        return sum(len(points) * (density - self.birth) for density, points in self.exits)


def density_clusters(
    distances: Float[Tensor, "n n"], min_cluster_size: int, min_samples: int, *, allow_single_cluster: bool = False
) -> Int[Tensor, " n"]:
    """The number of every point's cluster, −1 for points of no cluster; by HDBSCAN with the excess of mass.

    Args:
        distances: Between all points.
        min_cluster_size: The least number of points of a cluster.
        min_samples: The neighbor, not counting the point itself, whose distance is the least distance of a point.
        allow_single_cluster: Whether all points may be one cluster.
    """
    heights = _merge_heights(distances.detach().double().cpu(), min_samples)
    root = _build_cluster(heights, np.arange(len(heights)), 0.0, min_cluster_size)
    chosen, _ = _choose_stable(root)
    if chosen == [root] and root.children and not allow_single_cluster:
        chosen = [cluster for child in root.children for cluster in _choose_stable(child)[0]]
    labels = np.full(len(heights), NO_CLUSTER)
    for number, cluster in enumerate(chosen):
        if cluster is not root:
            labels[cluster.points] = number
        elif allow_single_cluster:  # without the points that leave it before its densest ones do
            densest = max(density for density, _ in root.exits)
            for density, points in root.exits:
                if density == densest:
                    labels[points] = number
    return torch.from_numpy(labels).to(distances.device)


def _merge_heights(distances: Float[Tensor, "n n"], min_samples: int) -> Heights:
    """Where no distance of a point counts as less than that to its neighbor number `min_samples`."""
    n = len(distances)
    core = distances.clone().fill_diagonal_(0).sort(dim=1).values[:, min(min_samples, n - 1)]
    links = torch.maximum(distances, torch.maximum(core[:, None], core)).fill_diagonal_(0)
    for k in range(n):  # to the longest link of the best path between two points
        links = torch.minimum(links, torch.maximum(links[:, k : k + 1], links[k : k + 1]))
    heights: Heights = links.numpy()
    return heights


def _build_cluster(heights: Heights, points: Points, birth: float, min_size: int) -> _Cluster:
    """Lower the distance step by step: small groups leave the cluster, and several large ones are its children."""
    cluster, inside = _Cluster(points, birth), points
    smallest = max(float(heights.max()), 1e-300) * 1e-12  # of points at the same place
    while True:
        height = float(heights[inside[0], inside].max())  # connected points: of any point to the farthest group
        density = 1 / max(height, smallest)
        large = _split_below(heights, inside, height, min_size) if height > 0 else []
        if len(large) != 1:
            cluster.exits.append((density, inside))
            cluster.children = [_build_cluster(heights, group, density, min_size) for group in large]
            return cluster
        cluster.exits.append((density, np.setdiff1d(inside, large[0])))
        inside = large[0]


def _split_below(heights: Heights, points: Points, height: float, min_size: int) -> list[Points]:
    """The groups of at least `min_size` points that remain connected below this distance."""
    groups, remaining = list[Points](), points
    while len(remaining) > 0:
        near = (heights[remaining[0], remaining] < height) | (remaining == remaining[0])
        groups.append(remaining[near])
        remaining = remaining[~near]
    return [group for group in groups if len(group) >= min_size]


def _choose_stable(cluster: _Cluster) -> tuple[list[_Cluster], float]:
    """The most stable choice of clusters of which none contains another, and its stability."""
    below = [_choose_stable(child) for child in cluster.children]
    stability = sum(sorted(value for _, value in below))
    if below and stability > cluster.stability:
        return [chosen for clusters, _ in below for chosen in clusters], stability
    return [cluster], cluster.stability
