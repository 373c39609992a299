"""AlignIns: reject updates whose direction or signs are far from the median, and clip the others.

Xu, Zhang, Hu. Detecting Backdoor Attacks in Federated Learning via Direction Alignment Inspection. CVPR 2025.
https://arxiv.org/abs/2503.07978
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State
from ..ops import clip_rows, compute_dtype, cosine, kth_largest, median_of, row_norms, sign_sum, z_scores

FRACTION = 0.3  # of the coordinates: the authors' default


@dataclass(frozen=True)
class AlignIns(Filter):
    """Accept updates whose two scores are less than a number of standard deviations from the median; clip those.

    The first score is cos(u, w) over the whole model, with its sign. The second is the share of the largest coordinates
    of u whose sign is that of the majority of clients. Accepted updates are clipped to their median norm. A round in
    which all scores are equal accepts everybody. The score is the larger of both deviations, in units of its limit: 1
    and more is rejected. If both are independent, half of the honest clients are rejected in every round. Clients that
    know w can set their cosine, and the majority sign belongs to the majority.

    Args:
        fraction: The share of coordinates, those with the largest magnitudes, whose signs are compared.
        max_cosine: How far the cosine may be from the median, in standard deviations.
        max_sign: How far the share of signs may be from the median, in standard deviations.
    """

    fraction: float = FRACTION
    max_cosine: float = 1.0
    max_sign: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"AlignIns.fraction must be in (0, 1], got {self.fraction}")
        for name in ("max_cosine", "max_sign"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"AlignIns.{name} must be positive and finite, got {getattr(self, name)}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        rows = cohort.trainable()
        alignment = cosine(rows, cohort.params[: rows.shape[1]]).double()
        rounding = 8 * torch.finfo(compute_dtype(rows.dtype)).eps
        directions = z_scores(alignment, rounding) / self.max_cosine
        signs = z_scores(principal_sign_shares(rows, self.fraction)) / self.max_sign
        scores = torch.maximum(directions, signs)
        accepted, norms = scores < 1, row_norms(rows)
        limit = float(median_of(norms[accepted])) if bool(accepted.any()) else 0.0
        return Judgment(scores, accepted, clip_rows(cohort.updates, norms, limit)), state


def principal_sign_shares(
    rows: Float[Tensor, "n k"], fraction: float, voters: Float[Tensor, "v k"] | None = None
) -> Float[Tensor, " n"]:
    """The share of each row's largest coordinates whose sign is the majority's; equal magnitudes all count in part.

    The majority is that of the voters; by default, of the rows themselves.
    """
    principal = sign_sum(rows if voters is None else voters).sign()
    n_largest = max(1, math.floor(fraction * rows.shape[1] + 1e-9))
    shares = []
    for row in rows.detach():
        magnitudes, agrees = row.abs(), row.sign() == principal
        least = kth_largest(magnitudes, n_largest)
        above, tied = magnitudes > least, magnitudes == least
        in_part = (n_largest - above.sum()).double() * (agrees & tied).sum() / tied.sum()
        shares.append(((agrees & above).sum() + in_part) / n_largest)
    return torch.stack(shares)
