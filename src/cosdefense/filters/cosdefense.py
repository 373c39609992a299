"""CosDefense: reject clients whose last-layer update is aligned with the last layer itself.

Yaldiz, Zhang, Avestimehr. Secure Federated Learning against Model Poisoning Attacks via Client
Filtering. 2023. https://arxiv.org/abs/2304.00160
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, Layout, State
from ..ops import cosine, mean_of, median_of, min_max, std_of

Threshold = Literal["mean", "mean+std", "mad"]


@dataclass(frozen=True)
class CosDefense(Filter):
    """Score every update by |cos(layer's update, layer)|, scaled to [0, 1], and accept scores below a threshold.

    The paper's threshold is the mean. It rejects somebody in every round, also without an attack. The other two
    thresholds reject fewer honest clients and fewer malicious ones.

    Args:
        layer: The tensor to compare. None is the classifier's weight matrix, without bias.
        threshold: "mean", "mean+std" (the mean plus k standard deviations) or "mad" (the median plus k scaled median
            absolute deviations).
        k: How many deviations above the center are accepted. The "mean" threshold ignores it.
    """

    layer: str | None = None
    threshold: Threshold = "mean"
    k: float = 1.0

    def __post_init__(self) -> None:
        if self.threshold not in get_args(Threshold):
            raise ValueError(f"CosDefense.threshold must be one of {get_args(Threshold)}, got {self.threshold!r}")
        if not self.k >= 0:
            raise ValueError(f"CosDefense.k must be at least 0, got {self.k}")

    def select_layers(self, layout: Layout) -> tuple[str, ...]:
        return (layout.find_layer(self.layer),)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates, weights = cohort.layer(self.layer)
        alignment = cosine(updates, weights).abs()
        rounding = 8 * torch.finfo(alignment.dtype).eps  # smaller differences between cosines mean nothing
        scores = min_max(alignment, tolerance=rounding)
        return Judgment(scores, self._accept(scores)), state

    def _accept(self, scores: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
        if self.threshold == "mad":
            center = median_of(scores)
            deviation = 1.4826 * median_of((scores - center).abs())  # equals std for normal scores
            return scores <= center + self.k * deviation
        limit = mean_of(scores) + (self.k * std_of(scores) if self.threshold == "mean+std" else 0)
        # min_max makes equal scores zero: one client, a zero head, or no outlier at all.
        return (scores < limit) | (scores.max() == 0)
