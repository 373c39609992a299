"""Inner product manipulation: send the opposite of what the honest clients found.

Xie, Koyejo, Gupta. Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation.
UAI 2020. https://arxiv.org/abs/1903.03936
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from .attack import Attack


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Every attacker sends −epsilon times the honest clients' mean update: it knows them all."""

    needs_local_training: ClassVar[bool] = False
    epsilon: float = 5.0  # the CosDefense paper's value; above (honest / malicious) it turns the mean around

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        # With no honest client in the round, the attackers turn around what they would have sent.
        known = ~malicious if bool((~malicious).any()) else malicious
        forged = -self.epsilon * cohort.updates[known].mean(dim=0)
        return forged.expand_as(cohort.updates), state
