"""SignGuard: drop updates of unusual norm or with unusual shares of positive and negative entries, and clip the others.

Xu, Huang, Song, Lan. Byzantine-robust Federated Learning through Collaborative Malicious Gradient Filtering.
ICDCS 2022. https://arxiv.org/abs/2109.05872

The mean shift starts from every client; the authors' code starts from the cells of a grid. Their Sim and Dist compare
with the other clients in the first epochs; here this lasts until the server has moved once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State, generator
from ..ops import clip_rows, cosine, cosines, largest_mode, median_of, row_norms, squared_distances

Variant = Literal["plain", "sim", "dist"]
SMALL = 1e-8  # the authors' constant against division by zero
FAR = 1.1  # median distances, from which Dist takes an update for distant
STEP = 0.2  # the largest value of the fourth feature
MOST = 1e9  # largest score


@dataclass(frozen=True)
class SignGuard(Filter):
    """Accept updates of usual norm in the largest cluster by the signs of their entries; clip them to the median norm.

    The norm must be between `low` and `high` median norms. The features are the shares of positive, zero and negative
    entries among some coordinates, drawn by the seed, each relative to its largest value in the round; clusters are
    found by a mean shift. Accepted updates are clipped to the median norm of all. The score is the largest of three
    numbers that are above 1 where a test fails: the norm relative to either limit, and the distance to the accepted
    cluster in bandwidths. Honest updates are rejected in every round. Attacks that keep the shares of signs pass.

    Args:
        variant: "sim" adds a feature for the cosine with the server's last step, "dist" one for the distance to it.
        low: The least norm, in median norms.
        high: The largest norm, in median norms.
        fraction: The share of the coordinates that signs are counted in.
        contiguous: Whether these are one slice of the vector, as in the authors' code: often one layer. False draws
            every coordinate on its own.
    """

    variant: Variant = "plain"
    low: float = 0.1
    high: float = 3.0
    fraction: float = 0.1
    contiguous: bool = True

    def __post_init__(self) -> None:
        if self.variant not in get_args(Variant):
            raise ValueError(f"SignGuard.variant must be one of {get_args(Variant)}, got {self.variant!r}")
        if not 0 <= self.low < 1 < self.high < math.inf:
            raise ValueError(f"SignGuard needs 0 <= low < 1 < high, got {self.low} and {self.high}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"SignGuard.fraction must be in (0, 1], got {self.fraction}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        median = float(median_of(norms))
        too_long = norms / max(self.high * median, 1e-300)
        too_short = self.low * median / norms.clamp_min(1e-300)
        usual = ((too_long < 1) & (too_short < 1)) | (norms == median)  # the median may be 0
        cluster, distances = largest_mode(self._features(cohort, state))
        scores = torch.stack([too_long, too_short, distances]).amax(dim=0).clamp_max(MOST)
        judgment = Judgment(scores, usual & cluster, clip_rows(cohort.updates, norms, median))
        return judgment, None if self.variant == "plain" else cohort.params

    def _features(self, cohort: Cohort, state: State) -> Float[Tensor, "n k"]:
        shares = _sign_shares(self._draw_coordinates(cohort))
        features = shares / (shares.amax(dim=0) + SMALL)
        if self.variant == "plain":
            return features
        step = None if state is None else (cohort.params - state)[: cohort.layout.n_trainable]
        step = None if step is None or not bool(step.any()) else step
        extra = _similarity(cohort, step) if self.variant == "sim" else _remoteness(cohort, step)
        return torch.cat([features, extra.double()[:, None]], dim=1)

    def _draw_coordinates(self, cohort: Cohort) -> Float[Tensor, "n k"]:
        rows, rng = cohort.trainable(), generator(cohort.seed, "signguard")
        n_columns = max(1, math.floor(self.fraction * rows.shape[1]))
        if n_columns == rows.shape[1]:
            return rows
        if self.contiguous:
            start = int(torch.randint(rows.shape[1] - n_columns + 1, (), generator=rng))
            return rows[:, start : start + n_columns]
        return rows[:, torch.randperm(rows.shape[1], generator=rng)[:n_columns].to(rows.device)]


def _sign_shares(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n 3"]:
    counts = torch.stack([(rows > 0).sum(dim=1), (rows == 0).sum(dim=1), (rows < 0).sum(dim=1)], dim=1)
    return counts.double() / rows.shape[1]


def _similarity(cohort: Cohort, step: Float[Tensor, " t"] | None) -> Float[Tensor, " n"]:
    """The cosine with the server's last step, or the median cosine with the others; from 0 to the median, scaled."""
    n = len(cohort)
    if step is not None:
        similar = cosine(cohort.trainable(), step).double()
    elif n > 1:
        others = cosines(cohort.trainable())[~torch.eye(n, dtype=torch.bool, device=cohort.updates.device)]
        similar = torch.stack([median_of(row) for row in others.view(n, n - 1)])
    else:
        similar = cohort.weights.new_ones(1).double()
    middle = median_of(similar).clamp_min(0)
    return similar.clamp_min(0).minimum(middle) / (middle / STEP + SMALL)


def _remoteness(cohort: Cohort, step: Float[Tensor, " t"] | None) -> Float[Tensor, " n"]:
    """0.2 for an update much farther than the median from the server's last step, or from the nearest half."""
    if step is not None:
        distances = row_norms(cohort.trainable(), step)
    else:
        others = squared_distances(cohort.trainable()).sqrt().sort(dim=1).values
        distances = others[:, 1 : 1 + len(cohort) // 2].sum(dim=1)
    return STEP * ((distances >= FAR * median_of(distances)) & (distances > 0)).double()
