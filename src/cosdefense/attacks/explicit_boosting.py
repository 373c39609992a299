"""Explicit boosting: climb the loss, then send it so much longer that the others cannot average it away.

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
    """Sends u · n / m: u from `steps` steps of gradient ascent, n clients in the round, m of them malicious."""

    steps: int = 5  # of gradient ascent on the attacker's own data

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"ExplicitBoosting.steps must be at least 1, got {self.steps}")

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return TrainingPlan(self.steps, ascend=True)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return boost(malicious) * cohort.updates, state


def boost(malicious: Bool[Tensor, " n"]) -> float:
    """The factor with which the attackers together outweigh everybody: n / m."""
    return len(malicious) / max(1, int(malicious.sum()))
