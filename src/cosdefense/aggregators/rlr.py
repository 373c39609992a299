"""RLR: reverse the mean in coordinates where too few clients agree on the sign.

Ozdayi, Kantarcioglu, Gel. Defending against Backdoors in Federated Learning with Robust Learning Rate. AAAI 2021.
https://arxiv.org/abs/2007.03767
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, Need, State
from ..ops import sign_sum
from .mean import Mean


@dataclass(frozen=True)
class RLR(Aggregator):
    """The weighted mean ū, with the sign of coordinate j reversed where |Σᵢ sign(uᵢⱼ)| < agreement · n.

    Where honest clients disagree, which is common with few clients or different data, the model moves against their
    mean: a high `agreement` reverses nearly all of it. As many malicious clients as that decide every coordinate in
    which honest updates are small. Rejects no update. Buffers neither vote nor are reversed.

    Args:
        agreement: The least net share of clients with the same sign. The default is the authors' 4 of 10. They want
            more than the number of malicious clients and at most the number of honest ones.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})
    skips_rejected: ClassVar[bool] = False

    agreement: float = 0.4

    def __post_init__(self) -> None:
        if not 0 <= self.agreement <= 1:
            raise ValueError(f"RLR.agreement must be in [0, 1], got {self.agreement}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        mean, _ = Mean()(cohort, None)
        votes = sign_sum(cohort.trainable()).abs()
        agreed = votes >= self.agreement * len(cohort) - 1e-9  # 0.29 · 100 is 28.999999999999996
        weights = mean[: cohort.layout.n_trainable]
        torch.where(agreed, weights, -weights, out=weights)
        return mean, state
