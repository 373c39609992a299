"""Krum: keep the update closest to its neighbors.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017. https://arxiv.org/abs/1703.02757
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, Need, State, TooFewClients
from ..ops import fraction_of, squared_distances

SORTED_ROWS = 256  # at a time


@dataclass(frozen=True)
class Krum(Filter):
    """Keep the one update with the smallest sum of squared distances to its n − f − 2 nearest others.

    Here f = floor(contamination · n). The score is that sum. Updates with equal scores are all kept, because breaking
    a tie by position would let the order of arrival decide.

    Args:
        contamination: The expected share of malicious clients.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.3

    def __post_init__(self) -> None:
        check_contamination(self, self.contamination)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        scores = krum_scores(self, cohort, fraction_of(self.contamination, len(cohort)))
        return Judgment(scores, scores <= scores.min()), state


def check_contamination(rule: Filter, contamination: float) -> None:
    if not 0 <= contamination < 0.5:
        raise ValueError(f"{type(rule).__name__}.contamination must be in [0, 0.5), got {contamination}")


def krum_scores(rule: Filter, cohort: Cohort, f: int) -> Float[Tensor, " n"]:
    """Sum of squared distances to the n − f − 2 nearest others."""
    n = len(cohort)
    if n <= 2 * f + 2:
        name = type(rule).__name__
        raise TooFewClients(f"{name} needs more than {2 * f + 2} clients to tolerate {f} attackers, got {n}")
    return sum_nearest(squared_distances(cohort.trainable()), n_neighbors=n - f - 2)


def sum_nearest(distances: Float[Tensor, "n n"], n_neighbors: int) -> Float[Tensor, " n"]:
    """For every row, the sum of its distances to the nearest others."""
    others = distances.clone().fill_diagonal_(torch.inf)
    # Some rows at a time: sorting also returns indices, which are as large as the distances.
    return torch.cat([some.sort(dim=1).values[:, :n_neighbors].sum(dim=1) for some in torch.split(others, SORTED_ROWS)])
