"""Sign flip: every malicious client sends its own update reversed.

Li, Xu, Chen, Giannakis, Ling. RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
Learning from Heterogeneous Datasets. AAAI 2019. https://arxiv.org/abs/1811.03761
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Layout, State
from .attack import Attack, TrainingPlan


@dataclass(frozen=True)
class SignFlip(Attack):
    """Every malicious client sends −scale · u, where u is its own update.

    Args:
        scale: The factor.
        every_step: Ascend the loss in every local step and send scale · u, instead of reversing the final update.
    """

    scale: float = 1.0
    every_step: bool = False

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return TrainingPlan(ascend=self.every_step)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return (self.scale if self.every_step else -self.scale) * cohort.updates, state
