"""Inner product manipulation: send the reversed mean of the honest updates.

Xie, Koyejo, Gupta. Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation.
UAI 2020. https://arxiv.org/abs/1903.03936
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._knowledge import known_rows
from .attack import Attack


@dataclass(frozen=True)
class InnerProduct(Attack):
    """All malicious clients send −epsilon · (mean of the honest updates).

    In a round without an honest client they use the mean of their own updates.

    Args:
        epsilon: The factor. A plain mean is reversed above n_honest / n_malicious. The CosDefense paper uses 5.
    """

    needs_local_training: ClassVar[bool] = False
    epsilon: float = 5.0

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        known = known_rows(malicious, "full")
        forged = -self.epsilon * cohort.updates[known].mean(dim=0)
        return forged.expand_as(cohort.updates), state
