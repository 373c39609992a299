"""Zero updates: free-riders that return the global model unchanged.

Lin, Du, Liu. Free-riders in Federated Learning: Attacks and Defenses. 2019. https://arxiv.org/abs/1911.12560
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from .attack import Attack


@dataclass(frozen=True)
class ZeroUpdates(Attack):
    """All malicious clients send an update of zeros.

    A plain mean becomes shorter by the share of the malicious clients, which a larger server step would undo. Rules
    that take the shortest or the most central update prefer a row of zeros, and then the model stops learning. Rules
    that measure other updates by the shortest ones reject the honest clients.
    """

    needs_local_training: ClassVar[bool] = False

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return torch.zeros_like(cohort.updates), state
