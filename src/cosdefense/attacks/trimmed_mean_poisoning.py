"""Local model poisoning against trimmed mean and median: sit just beyond the honest values, on the wrong side.

Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. USENIX
Security 2020. https://arxiv.org/abs/1911.11815
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State, generator
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class TrimmedMeanPoisoning(Attack):
    """Per coordinate: where honest clients go up, a value below their minimum; where they go down, above their maximum.

    With full knowledge it is drawn between the extreme and `factor` times it; with partial knowledge,
    the attackers' own honest updates stand for everybody's, and it is drawn 3 to 4 standard deviations
    away from their mean (so a single attacker, who sees no deviation, does no harm). That range was
    confirmed in public code, not in the paper's text.
    """

    knowledge: Knowledge = "full"  # of the honest clients' updates
    factor: float = 2.0  # the paper's b

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"TrimmedMeanPoisoning.factor must be at least 1 and finite, got {self.factor}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        forged = cohort.updates.clone()
        if not bool(malicious.any()):
            return forged, state
        known = cohort.updates[known_rows(malicious, self.knowledge)]
        near, far = self._full(known) if self.knowledge == "full" else _partial(known)
        for row in malicious.nonzero().flatten().tolist():
            rng = generator(cohort.seed, "trimmed mean poisoning", int(cohort.clients[row]))
            drawn = torch.rand(len(near), generator=rng, dtype=near.dtype).to(near.device)
            forged[row] = near + drawn * (far - near)
        return forged, state

    def _full(self, known: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        """From the extreme outwards: twice it, or half of it when that is farther out."""
        highest, lowest = known.amax(dim=0), known.amin(dim=0)
        above = torch.where(highest > 0, highest * self.factor, highest / self.factor)
        below = torch.where(lowest > 0, lowest / self.factor, lowest * self.factor)
        direction = known.mean(dim=0)
        return torch.where(direction > 0, lowest, highest), torch.where(direction > 0, below, above)


def _partial(known: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    mean, deviation = known.mean(dim=0), known.std(dim=0, correction=0)
    sign = torch.where(mean > 0, 1, -1)
    return mean - 3 * sign * deviation, mean - 4 * sign * deviation
