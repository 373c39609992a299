"""Opposed clusters: where updates form two clusters in opposite directions, reject the one with fewer votes.

This rule was made for this project. docs/factions-history.md explains why it works, when it cannot, and
what else was tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Judgment, Similarities, SimilarityFilter, State


@dataclass(frozen=True)
class OpposedClusters(SimilarityFilter):
    """Split the updates into two clusters and, if these are opposed, reject the cluster with fewer votes.

    The clusters are given by the signs of the leading eigenvector of the matrix of cosines. The clusters are opposed
    if the mean cosine between them is below −min_opposition; otherwise no update is rejected, because honest clients
    with different data disagree too. A cluster's votes are the sum of its weights. In the cluster with fewer votes,
    those updates are rejected whose mean cosine with the other cluster is below −min_opposition. A tie rejects no
    update. The score is minus the mean cosine with the accepted cluster, or with all updates if none is rejected.

    Args:
        min_opposition: How opposed two clusters must be. Honest clusters rarely reach the default; colluding clients
            that reverse the mean clearly exceed it.
    """

    min_opposition: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.min_opposition < 1:
            raise ValueError(f"OpposedClusters.min_opposition must be in [0, 1), got {self.min_opposition}")

    def judge(self, similarities: Similarities, weights: Tensor, state: State) -> tuple[Judgment, State]:
        similarity = similarities.cosines().cpu()  # n × n is small: a CPU computes its eigenvectors faster
        trusted = self._select_trusted(similarity, weights.double().cpu())
        opposition = -_mean_over_others(similarity, trusted)
        rejected = ~trusted & (opposition > self.min_opposition)
        return Judgment(opposition.to(weights), ~rejected.to(weights.device)), state

    def _select_trusted(self, similarity: Float[Tensor, "n n"], votes: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """The cluster with more votes if the two are opposed; otherwise all clients."""
        first: Tensor = torch.linalg.eigh(similarity).eigenvectors[:, -1] > 0
        everybody = torch.ones_like(first)
        if bool(first.all()) or not bool(first.any()):
            return everybody
        opposition = -float(similarity[first][:, ~first].mean())
        first_votes, second_votes = (float(votes[cluster].sort().values.sum()) for cluster in (first, ~first))
        if opposition <= self.min_opposition or first_votes == second_votes:
            return everybody
        return first if first_votes > second_votes else ~first


def _mean_over_others(similarity: Float[Tensor, "n n"], members: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Each client's mean cosine with the members, not counting itself."""
    others = similarity.clone().fill_diagonal_(0)[:, members].sum(dim=1)
    count = members.sum() - members.to(torch.long)
    return others / count.clamp_min(1)
