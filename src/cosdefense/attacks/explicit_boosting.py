"""Explicit boosting: ascend the loss and scale the update so that averaging does not weaken it.

Bhagoji, Chakraborty, Mittal, Calo. Analyzing Federated Learning through an Adversarial Lens. ICML 2019.
https://arxiv.org/abs/1811.12470
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Layout, State
from .attack import Attack, TrainingPlan


@dataclass(frozen=True)
class ExplicitBoosting(Attack):
    """Every malicious client sends u · n / m, where u is its own update from gradient ascent.

    n is the number of clients in the round, m the number of malicious ones among them.

    Args:
        steps: The number of local steps of gradient ascent.
    """

    steps: int = 5

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"ExplicitBoosting.steps must be at least 1, got {self.steps}")

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return TrainingPlan(self.steps, ascend=True)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return boost_factor(malicious) * cohort.updates, state


def boost_factor(malicious: Bool[Tensor, " n"]) -> float:
    """n / m: with this factor the plain mean contains the mean of the malicious updates at full length."""
    return len(malicious) / max(1, int(malicious.sum()))
