"""Local model poisoning against trimmed mean and median: send values just beyond the honest ones, on the wrong side.

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
    """Every malicious client sends, per coordinate, a value beyond the honest ones, against the honest mean.

    Where the honest mean is positive the value is below the honest minimum, elsewhere above the honest maximum. With
    full knowledge it is drawn between that extreme and the extreme times (or divided by) `factor`. With partial
    knowledge it is drawn 3 to 4 standard deviations from the mean of the malicious clients' own updates, so that a
    single malicious client has no effect. That range was confirmed in public code, not in the paper's text.

    Args:
        knowledge: "full": the honest updates are known. "partial": the malicious clients' own updates are used
            instead.
        factor: How far beyond the extreme a value may lie, with full knowledge. It is called b in the paper.
    """

    knowledge: Knowledge = "full"
    factor: float = 2.0

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"TrimmedMeanPoisoning.factor must be at least 1 and finite, got {self.factor}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        forged = cohort.updates.clone()
        if not bool(malicious.any()):
            return forged, state
        known = cohort.updates[known_rows(malicious, self.knowledge)]
        near, far = self._bounds_from_extremes(known) if self.knowledge == "full" else _bounds_from_deviation(known)
        for row in malicious.nonzero().flatten().tolist():
            rng = generator(cohort.seed, "trimmed mean poisoning", int(cohort.clients[row]))
            fractions = torch.rand(len(near), generator=rng, dtype=near.dtype).to(near.device)
            forged[row] = near + fractions * (far - near)
        return forged, state

    def _bounds_from_extremes(self, known: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        """The extreme, and the extreme times or divided by `factor`, whichever is farther out."""
        highest, lowest = known.amax(dim=0), known.amin(dim=0)
        above = torch.where(highest > 0, highest * self.factor, highest / self.factor)
        below = torch.where(lowest > 0, lowest / self.factor, lowest * self.factor)
        direction = known.mean(dim=0)
        return torch.where(direction > 0, lowest, highest), torch.where(direction > 0, below, above)


def _bounds_from_deviation(known: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    mean, deviation = known.mean(dim=0), known.std(dim=0, correction=0)
    sign = torch.where(mean > 0, 1, -1)
    return mean - 3 * sign * deviation, mean - 4 * sign * deviation
