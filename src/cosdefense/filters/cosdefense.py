"""CosDefense: reject clients whose last-layer update points along the last layer itself.

Yaldiz, Zhang, Avestimehr. Secure Federated Learning against Model Poisoning Attacks via Client
Filtering. 2023. https://arxiv.org/abs/2304.00160
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State
from ..ops import cosine, mean_of, median_of, min_max, std_of

Threshold = Literal["mean", "mean+std", "mad"]


@dataclass(frozen=True)
class CosDefense(Filter):
    """Scores are |cos(layer's update, layer)|, mapped onto [0, 1]; accepted are those strictly below the threshold.

    The paper's threshold is the mean. It always rejects somebody, on clean rounds too; the other
    two spare honest clients at the price of more patience with liars.
    """

    layer: str | None = None  # which tensor to look at; None = the classifier's weight matrix, without bias
    threshold: Threshold = "mean"  # the mean; the mean + k standard deviations; or the median + k scaled MADs
    k: float = 1.0  # how many deviations are still normal; the "mean" threshold has no use for it

    def __post_init__(self) -> None:
        if self.threshold not in get_args(Threshold):
            raise ValueError(f"CosDefense.threshold must be one of {get_args(Threshold)}, got {self.threshold!r}")
        if not self.k >= 0:
            raise ValueError(f"CosDefense.k must be at least 0, got {self.k}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates, weights = cohort.layer(self.layer)
        rounding = 8 * torch.finfo(updates.dtype).eps  # below it, differences between cosines mean nothing
        scores = min_max(cosine(updates, weights).abs(), tolerance=rounding)
        return Judgment(scores, self._accepted(scores)), state

    def _accepted(self, scores: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
        if self.threshold == "mad":
            center = median_of(scores)
            deviation = 1.4826 * median_of((scores - center).abs())  # equals std for normal scores
            return scores <= center + self.k * deviation
        limit = mean_of(scores) + (self.k * std_of(scores) if self.threshold == "mean+std" else 0)
        # min_max makes equal scores zero: one client, a zero head, or no outlier at all.
        return (scores < limit) | (scores.max() == 0)
