"""LASA: clip and sparsify updates, then choose in every layer whose values are used.

Xu, Zhang, Hu. Achieving Byzantine-Resilient Federated Learning via Layer-Adaptive Sparsified Model Aggregation. WACV
2025. https://arxiv.org/abs/2409.01435
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State
from ..ops import clip_rows, kth_largest, median_of, row_norms, weighted_sum, z_scores
from ..ops.parallel import map_in_threads


@dataclass(frozen=True)
class LASA(Filter):
    """Clip to the median norm, keep the largest coordinates, and in every tensor replace unusual clients by the others.

    In a tensor a client is unusual if its norm or its balance of signs, Σ sign / Σ |sign|, is more than a number of
    standard deviations from the median. Its values there become the mean of the other clients', so that the mean of all
    rows is the mean over usual clients in every tensor. If all are unusual, all stay. Sparsification concerns matrices
    and kernels; vectors stay whole. Rejects no client. The score is the share of tensors in which a client was
    replaced. Many honest clients are replaced somewhere in every round.

    Args:
        sparsity: The share of coordinates that is set to zero.
        max_norm_deviation: How far the norm of a tensor may be from the median, in standard deviations.
        max_sign_deviation: How far the balance of signs may be from the median, in standard deviations.
        dense: Use sparse updates for the tests only, and combine the clipped ones. The authors' code combines sparse
            updates; that their text means dense ones could not be confirmed.
    """

    sparsity: float = 0.3
    max_norm_deviation: float = 1.0
    max_sign_deviation: float = 1.0
    dense: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"LASA.sparsity must be in [0, 1), got {self.sparsity}")
        for name in ("max_norm_deviation", "max_sign_deviation"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"LASA.{name} must be positive and finite, got {getattr(self, name)}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        rows = clip_rows(cohort.updates, norms, float(median_of(norms)))
        layout = cohort.layout
        shapes = {name: len(shape) for name, shape in layout.shapes if name in layout.trainable}
        least = self._least_magnitudes(rows, [layout.slices[name] for name, ndim in shapes.items() if ndim >= 2])
        dropped = torch.zeros(len(cohort), dtype=torch.float64, device=rows.device)
        for name, ndim in shapes.items():
            values = rows[:, layout.slices[name]]  # a view: what is written here is written to the rows
            sparse = torch.where(values.abs() >= least[:, None], values, 0) if ndim >= 2 else values
            usual = self._select_usual(sparse)
            dropped += (~usual).double()
            if not self.dense:
                values.copy_(sparse)
            if not bool(usual.all()):
                weights = cohort.weights * usual
                values[~usual] = weighted_sum(values, weights / weights.sum())
        return Judgment(dropped / max(1, len(shapes)), torch.ones_like(cohort.weights), rows), state

    def _least_magnitudes(self, rows: Float[Tensor, "n d"], matrices: list[slice]) -> Float[Tensor, " n"]:
        """The magnitude that each row's coordinates in matrices must have to stay."""
        size = sum(where.stop - where.start for where in matrices)
        if size == 0 or self.sparsity == 0:
            return rows.new_zeros(len(rows))
        n_kept = size - math.floor(self.sparsity * size + 1e-9)

        def select(row: Float[Tensor, " d"]) -> Float[Tensor, ""]:
            return kth_largest(torch.cat([row[where] for where in matrices]).abs(), n_kept)

        return torch.stack(list(map_in_threads(select, list(rows)) if rows.device.type == "cpu" else map(select, rows)))

    def _select_usual(self, values: Float[Tensor, "n k"]) -> Bool[Tensor, " n"]:
        signs = torch.stack([(values > 0).sum(dim=1), (values < 0).sum(dim=1)]).double()
        balance = (signs[0] - signs[1]) / signs.sum(dim=0).clamp_min(1)
        usual = z_scores(row_norms(values)) < self.max_norm_deviation
        usual &= z_scores(balance) < self.max_sign_deviation
        return usual if bool(usual.any()) else torch.ones_like(usual)
