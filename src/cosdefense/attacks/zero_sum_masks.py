"""Zero-sum masks: noise on top of any attack that differs between malicious clients and cancels in their sum.

The masks of: Li, Ye, Hu, Li, Wang, Fang, Shi. 3DFed: Adaptive and Extensible Framework for Covert Backdoor Attack in
Federated Learning. IEEE S&P 2023.

There the masks are optimized on some rows of the classifier. Here they are random, over all weights: enough to test
rules that look for near-duplicates. The indicators and decoys of 3DFed are not part of this attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Cohort, Defense, Layout, Loss, State
from ..ops import row_norms
from ._geometry import draw_unit_vectors
from .attack import Attack, Samples, TrainingPlan
from .inner_product import InnerProduct


@dataclass(frozen=True)
class ZeroSumMasks(Attack):
    """Every malicious client adds a mask to what `attack` forges. The masks of a round sum to zero.

    The mean of all malicious updates is that of `attack`, as long as none of them is rejected. A single malicious
    client has no mask.

    Args:
        attack: The attack that is hidden. In an experiment file: a name, or a table.
        strength: The root mean square norm of the masks, in mean norms of the forged updates.
    """

    needs_model: ClassVar[bool] = True  # `attack` may need it

    attack: Attack = InnerProduct()
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.strength < math.inf:
            raise ValueError(f"ZeroSumMasks.strength must be positive and finite, got {self.strength}")

    def check_data(self, inputs: Samples, targets: Samples, n_classes: int) -> None:
        self.attack.check_data(inputs, targets, n_classes)

    def init(self) -> State:
        return self.attack.init()

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        attack, state = self.attack.with_defense(defense, memory, state)
        return replace(self, attack=attack), state

    def with_model(self, loss: Loss, images: Samples, labels: Samples, state: State) -> tuple[Attack, State]:
        attack, state = self.attack.with_model(loss, images, labels, state)
        return replace(self, attack=attack), state

    def with_state(self, state: State) -> Attack:
        return replace(self, attack=self.attack.with_state(state))

    def poison(
        self,
        images: Samples,
        labels: Samples,
        n_classes: int,
        rng: torch.Generator,
        clients: Int[Tensor, " m"] | None = None,
    ) -> tuple[Samples, Samples]:
        return self.attack.poison(images, labels, n_classes, rng, clients)

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return self.attack.plan_training(params, layout, n_malicious, state)

    def prepare_evaluation(self, images: Samples, labels: Samples, n_classes: int) -> tuple[Samples, Samples] | None:
        return self.attack.prepare_evaluation(images, labels, n_classes)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        rows, state = self.attack.forge(cohort, malicious, state)
        if int(malicious.sum()) < 2:
            return rows, state
        t, forged = cohort.layout.n_trainable, rows.clone()
        masks = draw_unit_vectors(cohort, malicious, "zero-sum masks")
        masks = masks - masks.mean(dim=0)
        norm = row_norms(rows[malicious, :t]).double().mean()
        masks *= self.strength * norm / masks.square().sum(dim=1).mean().sqrt()
        forged[malicious, :t] = (forged[malicious, :t].double() + masks).to(forged.dtype)
        return forged, state
