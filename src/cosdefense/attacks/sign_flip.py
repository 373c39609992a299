"""Sign flip: every attacker sends the opposite of its own update.

Li, Xu, Chen, Giannakis, Ling. RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
Learning from Heterogeneous Datasets. AAAI 2019. https://arxiv.org/abs/1811.03761
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..cohort import Cohort
from ..defense import State
from .attack import Attack


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends −scale · u. Needs no knowledge of anybody else."""

    scale: float = 1.0  # how much longer than the honest update

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return -self.scale * cohort.updates, state
