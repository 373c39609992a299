"""Clusters of few points, found without random starts and independently of the order of the points."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .scores import mean_of

MOST_STEPS = 300  # of a mean shift, and
LEAST_STEP = 1e-3  # bandwidths, as in scikit-learn
ROUNDING = 1e-9


def majority_component(distances: Float[Tensor, "n n"]) -> Bool[Tensor, " n"]:
    """The first component of more than half of the points that appears as points are linked by growing distance.

    This is the cluster that HDBSCAN finds with min_cluster_size = n // 2 + 1, min_samples = 1 and a single cluster
    allowed.
    """
    links = distances.detach().cpu().clone().fill_diagonal_(0)
    for k in range(len(links)):  # to the longest link of the best path between two points
        links = torch.minimum(links, torch.maximum(links[:, k : k + 1], links[k : k + 1]))
    # The distance at which a point is linked with half of the others: the same for all members of the component.
    radius = links.sort(dim=1).values[:, len(links) // 2]
    return (radius <= radius.min()).to(distances.device)


def largest_mode(points: Float[Tensor, "n k"]) -> tuple[Bool[Tensor, " n"], Float[Tensor, " n"]]:
    """The largest cluster of a mean shift with a flat kernel; and each point's distance to its mode, in bandwidths.

    The bandwidth is the mean distance to the k-th nearest point, itself included, where k = n // 2. Points farther than
    that from every mode belong to no cluster. Clusters of the same size are all kept.
    """
    wide = points.double().cpu()
    bandwidth = mean_of(_distances(wide, wide).sort(dim=1).values[:, max(1, len(points) // 2) - 1])
    bandwidth = bandwidth * (1 + ROUNDING)  # a point on the edge is inside
    if bandwidth == 0:  # most points are the same
        alike = (_distances(wide, wide) == 0).sum(dim=1)
        members = alike == alike.max()
        return members.to(points.device), (~members).double().to(points.device)
    modes = _keep_distinct(*_shift(wide, bandwidth), bandwidth)
    distances = _distances(wide, modes)
    nearest = distances.min(dim=1)
    label = torch.where(nearest.values <= bandwidth, nearest.indices, len(modes))
    sizes = label.bincount(minlength=len(modes) + 1)[: len(modes)]
    largest = sizes == sizes.max()
    members = torch.cat([largest, largest.new_zeros(1)])[label]
    return members.to(points.device), (distances[:, largest].amin(dim=1) / bandwidth).to(points.device)


def _shift(points: Float[Tensor, "n k"], bandwidth: Float[Tensor, ""]) -> tuple[Tensor, Tensor]:
    """Where every point ends if it moves to the mean of its surroundings, and how many points were there."""
    modes, moving = points.clone(), torch.ones(len(points), dtype=torch.bool)
    counts = torch.zeros(len(points), dtype=torch.long)
    for _ in range(MOST_STEPS):
        near = (_distances(modes[moving], points) <= bandwidth).double()
        counts[moving] = near.sum(dim=1).long()
        moved = near @ points / counts[moving, None]
        steps = (moved - modes[moving]).norm(dim=1)
        modes[moving] = moved
        moving[moving.clone()] = steps > LEAST_STEP * bandwidth
        if not bool(moving.any()):
            break
    return modes, counts


def _keep_distinct(modes: Tensor, counts: Tensor, bandwidth: Float[Tensor, ""]) -> Tensor:
    """Without modes that are within a bandwidth of one with more points."""
    pairs = sorted(zip(counts.tolist(), modes.tolist(), strict=True), reverse=True)
    kept = list[list[float]]()
    for _, mode in pairs:
        here = modes.new_tensor([mode])
        if not kept or bool((_distances(here, modes.new_tensor(kept)) > bandwidth).all()):
            kept.append(mode)
    return modes.new_tensor(kept)


def _distances(one: Tensor, other: Tensor) -> Tensor:
    """Distances between features, which are about 1; smaller ones than rounding are zero."""
    distances = (one[:, None] - other).norm(dim=2)
    return torch.where(distances < ROUNDING, 0, distances)
