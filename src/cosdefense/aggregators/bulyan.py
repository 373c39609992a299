"""Bulyan: choose updates by Krum one after the other, then average what lies nearest to the median of each coordinate.

El Mhamdi, Guerraoui, Rouault. The Hidden Vulnerability of Distributed Learning in Byzantium. ICML 2018.
https://arxiv.org/abs/1802.07927
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, Need, State, TooFewClients
from ..filters.krum import sum_nearest
from ..ops import fraction_of, mean_near_median, squared_distances


@dataclass(frozen=True)
class Bulyan(Aggregator):
    """Of θ = n − 2f chosen updates, the mean of the θ − 2f nearest to the median. Weights are not used."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.1  # the share of attackers to expect: f = floor(contamination · n); below a quarter

    def __post_init__(self) -> None:
        if not 0 <= self.contamination < 0.25:
            raise ValueError(f"Bulyan.contamination must be in [0, 0.25), got {self.contamination}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        n, f = len(cohort), fraction_of(self.contamination, len(cohort))
        if n < 4 * f + 3:
            raise TooFewClients(f"Bulyan needs at least {4 * f + 3} clients to tolerate {f} attackers, got {n}")
        chosen = select_by_krum(squared_distances(cohort.trainable()), f)
        return mean_near_median(cohort.updates, n - 4 * f, chosen), state


def select_by_krum(distances: Float[Tensor, "n n"], f: int) -> Tensor:
    """The n − 2f rows that Krum picks one after the other, each from those that are left."""
    n, device = len(distances), distances.device
    distances = distances.cpu()
    in_order = distances.sort(dim=1).values.tolist()
    left, chosen = list(range(n)), []
    for _ in range(n - 2 * f):
        scores = sum_nearest(distances[left][:, left], max(1, len(left) - f - 2)).tolist()
        # Two that are each other's nearest have the same score: all their distances decide, not their position.
        _, _, best = min((score, in_order[i], i) for score, i in zip(scores, left, strict=True))
        chosen.append(best)
        left.remove(best)
    return torch.tensor(sorted(chosen), device=device)
