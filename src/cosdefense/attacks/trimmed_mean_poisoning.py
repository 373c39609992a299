"""Local model poisoning against trimmed mean and median: send values just beyond the honest ones, on the wrong side.

Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. USENIX
Security 2020. https://arxiv.org/abs/1911.11815

The paper's formulas are about the clients' models, the authors' later public code applies them to updates. Weights are
many times larger than updates, so `factor` reaches much farther with models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State, generator
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack

Vectors = Literal["updates", "models"]


@dataclass(frozen=True)
class TrimmedMeanPoisoning(Attack):
    """Every malicious client sends, per coordinate, a value beyond the honest ones, against the honest mean.

    Where the honest mean is positive the value is below the honest minimum, elsewhere above the honest maximum. With
    full knowledge it is drawn between that extreme and the extreme times (or divided by) `factor`. With partial
    knowledge it is drawn 3 to 4 standard deviations from the mean of the malicious clients' own updates, so that a
    single malicious client has no effect. That range was confirmed in public code, not in the paper's text.
    Only the values with full knowledge depend on `of`. A CPU and a GPU draw different values.

    Args:
        knowledge: "full": the honest updates are known. "partial": the malicious clients' own updates are used
            instead.
        factor: How far beyond the extreme a value may lie, with full knowledge. It is called b in the paper.
        of: Which extremes are multiplied: those of the "updates", or of the "models", as the paper writes it.
    """

    knowledge: Knowledge = "full"
    factor: float = 2.0
    of: Vectors = "updates"

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        check_choice("of", self.of, Vectors)
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"TrimmedMeanPoisoning.factor must be at least 1 and finite, got {self.factor}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        forged = cohort.updates.clone()
        if not bool(malicious.any()):
            return forged, state
        known = cohort.updates[known_rows(malicious, self.knowledge)]
        near, far = _bounds_from_deviation(known)
        if self.knowledge == "full":
            near, far = self._bounds_from_extremes(known, cohort.params)
        clients = cohort.clients.tolist()
        for row in malicious.nonzero().flatten().tolist():
            rng = generator(cohort.seed, "trimmed mean poisoning", clients[row], device=near.device)
            fractions = torch.rand(len(near), generator=rng, dtype=near.dtype, device=near.device)
            forged[row] = near + fractions * (far - near)
        return forged, state

    def _bounds_from_extremes(
        self, known: Float[Tensor, "m d"], params: Float[Tensor, " d"]
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        """The extreme, and the extreme times or divided by `factor`, whichever is farther out. Both are updates."""
        origin = params if self.of == "models" else torch.zeros_like(params)
        highest, lowest = known.amax(dim=0), known.amin(dim=0)
        high, low = highest + origin, lowest + origin
        above = torch.where(high > 0, high * self.factor, high / self.factor) - origin
        below = torch.where(low > 0, low / self.factor, low * self.factor) - origin
        direction = known.mean(dim=0)
        return torch.where(direction > 0, lowest, highest), torch.where(direction > 0, below, above)


def _bounds_from_deviation(known: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    mean, deviation = known.mean(dim=0), known.std(dim=0, correction=0)
    sign = torch.where(mean > 0, 1, -1)
    return mean - 3 * sign * deviation, mean - 4 * sign * deviation
