"""Attack: the interface of a lie, and the attack that does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Cohort, Defense, Layout, State


@dataclass(frozen=True)
class TrainingPlan:
    """How malicious clients train before they forge."""

    steps: int | None = None  # local steps; None: as many as everybody
    ascend: bool = False  # climb the loss instead of descending


@dataclass(frozen=True)
class Attack:
    """Nobody lies: every part does nothing. An attack overrides what it needs; when it acts is not its business."""

    needs_local_training: ClassVar[bool] = (
        True  # False: what its clients would have found is not looked at, if anyone is honest
    )

    def init(self) -> State:
        """What the attackers remember before the first round."""
        return None

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        """Before a round: the attack and its state, knowing the server's defense and what that remembers.

        Only a simulator can tell; most attacks do not listen.
        """
        return self, state

    def poison(
        self,
        images: Float[Tensor, "*batch channels height width"],
        labels: Int[Tensor, "*batch"],
        n_classes: int,
        rng: torch.Generator,
    ) -> tuple[Float[Tensor, "*batch channels height width"], Int[Tensor, "*batch"]]:
        """Before training: what malicious clients make of their batches. Pixels are in [0, 1]."""
        return images, labels

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        """In between: how malicious clients train this round, of which they know the model and their own number."""
        return TrainingPlan()

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        """After training: what is sent. Only the malicious rows of the result are taken."""
        return cohort.updates, state

    def prepare_evaluation(
        self, images: Float[Tensor, "b channels height width"], labels: Int[Tensor, " b"], n_classes: int
    ) -> tuple[Float[Tensor, "b channels height width"], Int[Tensor, " b"]] | None:
        """For measuring success: test images as the attacker presents them, and the label wanted (-1: not counted).

        None for attacks that want no particular answer.
        """
        return None
