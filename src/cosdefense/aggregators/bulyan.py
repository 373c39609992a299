"""Bulyan: select updates by repeated Krum, then average the values nearest to the median of each coordinate.

El Mhamdi, Guerraoui, Rouault. The Hidden Vulnerability of Distributed Learning in Byzantium. ICML 2018.
https://arxiv.org/abs/1802.07927
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import Aggregator, Cohort, Need, State, TooFewClients
from ..filters.krum import sum_nearest
from ..ops import fraction_of, mean_near_median, squared_distances


@dataclass(frozen=True)
class Bulyan(Aggregator):
    """Select θ = n − 2f updates by Krum, then average the θ − 2f values nearest to the median of each coordinate.

    Here f = floor(contamination · n). Weights are not used.

    Args:
        contamination: The expected share of malicious clients, below a quarter.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.contamination < 0.25:
            raise ValueError(f"Bulyan.contamination must be in [0, 0.25), got {self.contamination}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        n, f = len(cohort), fraction_of(self.contamination, len(cohort))
        if n < 4 * f + 3:
            raise TooFewClients(f"Bulyan needs at least {4 * f + 3} clients to tolerate {f} attackers, got {n}")
        selected = select_by_krum(squared_distances(cohort.trainable()), f)
        return mean_near_median(cohort.updates, n - 4 * f, selected), state


def select_by_krum(distances: Float[Tensor, "n n"], f: int) -> Int[Tensor, " m"]:
    """The indices of n − 2f rows: Krum selects one after the other, each from the remaining rows."""
    n, device = len(distances), distances.device
    distances = distances.cpu()
    in_order = distances.sort(dim=1).values.tolist()
    remaining, selected = list(range(n)), []
    for _ in range(n - 2 * f):
        scores = sum_nearest(distances[remaining][:, remaining], max(1, len(remaining) - f - 2)).tolist()
        # Two mutual nearest neighbors have the same score. All their distances break the tie, not their position.
        _, _, best = min((score, in_order[i], i) for score, i in zip(scores, remaining, strict=True))
        selected.append(best)
        remaining.remove(best)
    return torch.tensor(sorted(selected), device=device)
