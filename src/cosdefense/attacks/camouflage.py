"""Camouflage: hide a push against everybody in what each attacker has honestly found.

The project's own, made against `Factions`: of what the adaptive attack tries there, the plainest that works.
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
    """Every attacker sends its own honest update minus `strength` times the honest clients' mean.

    Clients with different data are nearly at right angles to each other, and their mean is short beside any of them:
    an update with little of it turned around is about as long as it was, unlike the other liars' updates, and in
    nobody's opposite camp. The more strength, the more of all that is lost.
    """

    strength: float = 2.0  # 2 to 3 harmed Factions most; about (honest + malicious) / malicious stops a plain mean
    knowledge: Knowledge = "full"  # of the honest clients' updates

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 0 < self.strength < math.inf:
            raise ValueError(f"Camouflage.strength must be positive and finite, got {self.strength}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        known = known_rows(malicious, self.knowledge)
        if not bool(known.any()):
            return cohort.updates, state
        return cohort.updates - self.strength * cohort.updates[known].mean(dim=0), state
