"""NNM: replace every update by the mean of its nearest neighbors, before a robust aggregator.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan. Fixing by Mixing: A Recipe for Optimal Byzantine ML under
Heterogeneity. AISTATS 2023. https://arxiv.org/abs/2302.01772
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core import Cohort, Filter, Judgment, Need, State
from ..ops import fraction_of, keep_lowest, mix_rows, squared_distances
from .krum import check_contamination


@dataclass(frozen=True)
class NNM(Filter):
    """Replace every update by the mean of the n − f updates nearest to it, itself included.

    Here f = floor(contamination · n). Rejects no update: a robust aggregator must follow (the median, the trimmed mean,
    the geometric median). With the plain mean this is no defense. Updates at the same distance as the last neighbor
    share its weight. Distances are those of the trainable parts; whole rows are mixed. The score is the sum of the
    distances to the neighbors. Colluding clients within the spread of honest updates are mixed into every row.

    Args:
        contamination: The expected share of malicious clients.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.3

    def __post_init__(self) -> None:
        check_contamination(self, self.contamination)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        n = len(cohort)
        n_neighbors = n - fraction_of(self.contamination, n)
        distances = squared_distances(cohort.trainable())
        neighbors = keep_lowest(distances, n_neighbors)
        scores = torch.where(neighbors > 0, neighbors * distances.sqrt(), 0).sum(dim=1)
        mixed = mix_rows(cohort.updates, neighbors / n_neighbors)
        return Judgment(scores, torch.ones_like(cohort.weights), mixed), state
