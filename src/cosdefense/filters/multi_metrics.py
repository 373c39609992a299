"""Multi-Metrics: keep the clients whose models are unusual in none of three distances.

Huang, Li, Zhang, Chen, Huang, Ji. Multi-Metrics Adaptively Identifies Backdoors in Federated Learning. ICCV 2023.
https://arxiv.org/abs/2303.06601

This is the rule of the authors' code. That the paper defines the distances relative to the initial model could not be
confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State
from ..ops import cosine_distances, fraction_of, keep_lowest, manhattan_distances, mean_of, round_scores, row_norms


@dataclass(frozen=True)
class MultiMetrics(Filter):
    """Keep the floor(share · n) clients, at least one, with the smallest tᵀ Σ⁻¹ t.

    t has three sums over the other clients: of (1 − cosine)², of Manhattan distances, and of differences of norms, all
    of models w + u. Σ is the covariance of t in the round; where it is singular, its pseudo-inverse is used. t is not
    centered, as in the authors' code: an honest client may have a higher score than an outlier. Updates that tie with
    the last one kept share its weight. With the default seven of ten honest clients are rejected in every round.

    Args:
        share: The share of clients that is kept. The default is the authors'.
    """

    share: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"MultiMetrics.share must be in (0, 1], got {self.share}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        scores = round_scores(_mahalanobis(_metrics(cohort)), 1e-9)
        weights = keep_lowest(scores, max(1, fraction_of(self.share, len(cohort))))
        return Judgment(scores, weights.to(cohort.weights.dtype)), state


def _metrics(cohort: Cohort) -> Float[Tensor, "n 3"]:
    rows, origin = cohort.trainable(), cohort.params[: cohort.layout.n_trainable]
    norms = row_norms(rows, -origin)
    matrices = cosine_distances(rows, origin).square(), manhattan_distances(rows), (norms[:, None] - norms).abs()
    # Sorted, so that the order of the clients does not change a bit.
    return torch.stack([matrix.sort(dim=1).values.sum(dim=1) for matrix in matrices], dim=1)


def _mahalanobis(metrics: Float[Tensor, "n 3"]) -> Float[Tensor, " n"]:
    """tᵀ Σ⁻¹ t, which does not depend on the units of t."""
    largest = metrics.amax(dim=0)
    scaled = (metrics / torch.where(largest > 0, largest, 1)).cpu()
    if len(metrics) == 1:
        return torch.zeros_like(metrics[:, 0])
    centered = scaled - torch.stack([mean_of(column) for column in scaled.T])
    products = centered[:, :, None] * centered[:, None, :]
    covariance = products.sort(dim=0).values.sum(dim=0) / (len(metrics) - 1)
    inverse = torch.linalg.pinv(covariance, rtol=1e-9, hermitian=True)
    scores: Tensor = ((scaled @ inverse) * scaled).sum(dim=1)
    return scores.to(metrics.device)
