"""Noise camouflage: a reversed honest mean, hidden under noise that is different for every malicious client.

Designed for this project against defenses that count near-duplicates or look for opposed clusters. It needs neither a
long update nor knowledge of the defense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ..ops import median_of, row_norms
from ._geometry import draw_unit_vectors, normalize
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class NoiseCamouflage(Attack):
    """Every malicious client sends −strength · L / 2 · unit(mean) + noise · L · v.

    L is the median norm of the known updates, mean their mean, and v a random unit vector of the client's own. With
    the defaults the update has a norm of 0.99 L, and two malicious updates have a cosine of 0.26. Buffers are those of
    the known mean.

    Args:
        strength: The length of the reversed mean, in halves of L. 1 and 2 were measured against this project's own
            defense.
        noise: The length of the noise, in L.
        knowledge: "full": the honest updates are known. "partial": the malicious clients' own updates are used
            instead.
    """

    strength: float = 1.0
    noise: float = 0.85
    knowledge: Knowledge = "full"

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 0 < self.strength < math.inf:
            raise ValueError(f"NoiseCamouflage.strength must be positive and finite, got {self.strength}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"NoiseCamouflage.noise must be at least 0 and finite, got {self.noise}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        known, t = cohort.only(known_rows(malicious, self.knowledge)), cohort.layout.n_trainable
        mean, norm = known.updates.mean(dim=0, dtype=torch.float64), median_of(row_norms(known.trainable()).double())
        rows = draw_unit_vectors(cohort, malicious, "noise camouflage").mul_(norm * self.noise)
        rows -= norm * self.strength / 2 * normalize(mean[:t])
        forged = cohort.updates.clone()
        forged[malicious] = mean.to(forged.dtype)
        forged[malicious, :t] = rows.to(forged.dtype)
        return forged, state
