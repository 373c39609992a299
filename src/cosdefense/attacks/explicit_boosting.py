"""Explicit boosting: scale a malicious update so that averaging does not weaken it.

Bhagoji, Chakraborty, Mittal, Calo. Analyzing Federated Learning through an Adversarial Lens. ICML 2019.
https://arxiv.org/abs/1811.12470

The paper's attack is targeted: it trains a few chosen images to be classified as a target class. Here these are all
images of the class `source`. The untargeted form, with gradient ascent, is this project's default. The paper's
alternating minimization and its stealth terms are not part of this attack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Cohort, Layout, State
from ..core.sample_checks import require_classes
from .attack import Attack, Samples, TrainingPlan
from .label_flip import LabelFlip


@dataclass(frozen=True)
class ExplicitBoosting(Attack):
    """Every malicious client sends u · n / m, where u is its own update from gradient ascent or from wrong labels.

    n is the number of clients in the round, m the number of malicious ones among them. Without `source` and `target`
    the clients ascend the loss. With both they train on batches in which images of the class `source` are labeled
    `target`.

    Args:
        steps: The number of local steps.
        source: The class whose images should be misclassified. None: untargeted.
        target: The class that they should get. None: untargeted.
    """

    steps: int = 5
    source: int | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        LabelFlip(self.source, self.target)  # checks the options
        if self.steps < 1:
            raise ValueError(f"ExplicitBoosting.steps must be at least 1, got {self.steps}")

    def check_data(self, inputs: Samples, targets: Samples, n_classes: int) -> None:
        if self.target is not None:
            require_classes(type(self).__name__, targets, n_classes)

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return TrainingPlan(self.steps, ascend=self.target is None)

    def poison(
        self,
        images: Samples,
        labels: Samples,
        n_classes: int,
        rng: torch.Generator,
        clients: Int[Tensor, " m"] | None = None,
    ) -> tuple[Samples, Samples]:
        if self.target is None:
            return images, labels
        return LabelFlip(self.source, self.target).poison(images, labels, n_classes, rng)

    def prepare_evaluation(self, images: Samples, labels: Samples, n_classes: int) -> tuple[Samples, Samples] | None:
        if self.target is None:
            return None
        return LabelFlip(self.source, self.target).prepare_evaluation(images, labels, n_classes)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return boost_factor(malicious) * cohort.updates, state


def boost_factor(malicious: Bool[Tensor, " n"]) -> float:
    """n / m: with this factor the plain mean contains the mean of the malicious updates at full length."""
    return len(malicious) / max(1, int(malicious.sum()))
