"""Clusters of few points, found without random starts and independently of the order of the points."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MOST_STEPS = 300  # of one mean shift, as in scikit-learn


def majority_component(distances: Float[Tensor, "n n"]) -> Bool[Tensor, " n"]:
    """The first component of more than half of the points that appears as points are linked by growing distance.

    This is the cluster that HDBSCAN finds with min_cluster_size = n // 2 + 1, min_samples = 1 and a single cluster
    allowed. Links of equal distance are added together.
    """
    links = distances.detach().cpu()
    n = len(links)
    # Prim's minimum spanning tree: its links, sorted, connect points in the same order as all links do.
    parent, nearest = torch.zeros(n, dtype=torch.long), links[0].clone() if n else links.new_empty(0)
    outside, tree = torch.ones(n, dtype=torch.bool), list[tuple[float, int, int]]()
    outside[:1] = False
    for _ in range(n - 1):
        new = int(nearest.masked_fill(~outside, torch.inf).argmin()) if bool(outside.any()) else 0
        new = new if bool(outside[new]) else int(outside.nonzero()[0])  # all remaining distances are infinite
        tree.append((float(nearest[new]), int(parent[new]), new))
        outside[new] = False
        closer = links[new] < nearest
        nearest, parent = torch.where(closer, links[new], nearest), torch.where(closer, new, parent)
    component = torch.arange(n)
    for i, (length, one, other) in enumerate(sorted(tree)):
        component[component == component[other]] = component[one].clone()
        members = component == component[one]
        if i + 1 < len(tree) and sorted(tree)[i + 1][0] == length:
            continue
        largest = component.mode().values if n else component
        members = component == largest
        if 2 * int(members.sum()) > n:
            return members.to(distances.device)
    return torch.ones(n, dtype=torch.bool, device=distances.device)
