"""Krum and Multi-Krum: keep the updates with the closest neighbours.

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


@dataclass(frozen=True)
class Krum(Filter):
    """An update's score is the sum of squared distances to its n − f − 2 nearest; the lowest scores stay.

    Ties stay together, because breaking them by position would let the order of arrival decide.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.3  # the share of attackers to expect: f = floor(contamination · n)
    keep: int | None = 1  # how many updates to keep: 1 is Krum, None is Multi-Krum with n − f

    def __post_init__(self) -> None:
        if not 0 <= self.contamination < 0.5:
            raise ValueError(f"Krum.contamination must be in [0, 0.5), got {self.contamination}")
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"Krum.keep must be at least 1, got {self.keep}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        n, f = len(cohort), fraction_of(self.contamination, len(cohort))
        if n <= 2 * f + 2:
            raise TooFewClients(f"Krum needs more than {2 * f + 2} clients to tolerate {f} attackers, got {n}")
        scores = nearest_sums(squared_distances(cohort.trainable()), n_neighbors=n - f - 2)
        keep = min(self.keep or n - f, n)
        worst_kept = scores.sort().values[keep - 1]
        return Judgment(scores, scores <= worst_kept), state


def nearest_sums(distances: Float[Tensor, "n n"], n_neighbors: int) -> Float[Tensor, " n"]:
    """For every row, the sum of its distances to the nearest others."""
    others = distances.clone().fill_diagonal_(torch.inf)
    return others.sort(dim=1).values[:, :n_neighbors].sum(dim=1)
