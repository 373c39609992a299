"""Camouflage: every malicious client adds a small reversed honest mean to its own honest update.

Designed for this project against the preset `opposed-clusters`. It is the simplest of the updates that the adaptive
attack finds there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class Camouflage(Attack):
    """Every malicious client sends u − strength · (mean of the honest updates), where u is its own update.

    Updates of clients with different data are nearly orthogonal to each other, and their mean is short compared with
    any of them. Subtracting a small multiple of the mean therefore hardly changes the norm of an update, does not make
    the malicious updates near-duplicates, and does not make them form an opposed cluster. The larger `strength` is,
    the less of this holds.

    Args:
        strength: The factor. 2 to 3 damaged `opposed-clusters` most; about n / n_malicious stops the progress of a
            plain mean.
        knowledge: "full": the honest updates are known. "partial": their mean is estimated by that of the malicious
            clients' own updates.
    """

    strength: float = 2.0
    knowledge: Knowledge = "full"

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 0 < self.strength < math.inf:
            raise ValueError(f"Camouflage.strength must be positive and finite, got {self.strength}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        known = known_rows(malicious, self.knowledge)
        if not bool(known.any()):
            return cohort.updates, state
        return cohort.updates - self.strength * cohort.updates[known].mean(dim=0), state
