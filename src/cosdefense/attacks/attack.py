"""The interface of every attack, and the attack that does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ..core import ClientHook, Cohort, Defense, Layout, Loss, State

Samples = Shaped[Tensor, "..."]  # inputs, or targets: attacks that need images or classes say so in `check_data`


@dataclass(frozen=True)
class TrainingPlan:
    """How malicious clients train in one round, before `Attack.forge` is called.

    Args:
        steps: The number of local steps. None: as many as honest clients.
        ascend: Whether to ascend the loss instead of descending it.
        hooks: What malicious clients do in every step, in the place of the defense's hooks.
    """

    steps: int | None = None
    ascend: bool = False
    hooks: tuple[ClientHook, ...] = ()


@dataclass(frozen=True)
class Attack:
    """No attack: malicious clients behave like honest ones.

    An attack overrides the methods that it needs. The simulator decides in which rounds an attack is active.
    """

    # False: `forge` ignores the malicious clients' own updates in every round with an honest client. The simulator
    # then does not train malicious clients.
    needs_local_training: ClassVar[bool] = True
    # True: the simulator calls `with_model` in every round with malicious clients, before they train.
    needs_model: ClassVar[bool] = False

    def init(self) -> State:
        """Return the state before the first round."""
        return None

    def check_data(self, inputs: Samples, targets: Samples, n_classes: int) -> None:
        """Refuse samples that the attack was not made for, by an `UnsuitableData`. Called once, before the first round.

        Args:
            inputs: Those of all training samples: bytes are pixels, and reach `poison` as numbers in [0, 1].
            targets: Their classes or values.
            n_classes: The number of classes. 0: the targets are values.
        """

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        """Give the attack access to the server's defense. The simulator calls this in every round, before `forge`.

        An attack that adapts to the defense overrides this. All others ignore it.

        Args:
            defense: The defense of the server.
            memory: The state of that defense before this round.
            state: The state of the attack.

        Returns:
            The attack and the state to call `forge` with.
        """
        return self, state

    def with_model(self, loss: Loss, images: Samples, labels: Samples, state: State) -> tuple[Attack, State]:
        """Give the attack access to the global model and to the malicious clients' own data, before they train.

        Args:
            loss: The loss of the global model. It can be differentiated with respect to the images.
            images: Images of the malicious clients of the round. Pixels are in [0, 1].
            labels: Their labels.
            state: The state of the attack.

        Returns:
            The attack to call `poison` with, and the new state.
        """
        return self, state

    def with_state(self, state: State) -> Attack:
        """The attack to call `prepare_evaluation` with."""
        return self

    def poison(
        self,
        images: Samples,
        labels: Samples,
        n_classes: int,
        rng: torch.Generator,
        clients: Int[Tensor, " m"] | None = None,
    ) -> tuple[Samples, Samples]:
        """Change the training batches of malicious clients, before they train. Pixels are in [0, 1].

        `clients` are their identities, one for each entry of the first dimension. None: all images are of one client.
        """
        return images, labels

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        """Decide how malicious clients train, given the global model and how many of them take part in the round."""
        return TrainingPlan()

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        """Return the updates that are sent, and the new state. The caller uses only the malicious rows."""
        return cohort.updates, state

    def prepare_evaluation(self, images: Samples, labels: Samples, n_classes: int) -> tuple[Samples, Samples] | None:
        """Prepare test images for measuring the success of a targeted attack.

        Returns:
            The images as the attacker presents them and the labels that the attacker wants for them, −1 for images
            that do not count. None for untargeted attacks.
        """
        return None
