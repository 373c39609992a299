"""What all attacks with a trigger share: poisoned batches, the scaled update, the images that measure success."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.sample_checks import require_images, require_one_class, require_pixels
from ._scaled_poisoning import ScaledPoisoning


@dataclass(frozen=True)
class TriggerAttack(ScaledPoisoning):
    """Malicious clients add a trigger to a fraction of every batch, label it `target`, and send scale · u.

    Args:
        target: The class that the trigger should produce.
        fraction: The fraction of every malicious batch that gets the trigger, at least one image. Public
            implementations use about 0.3.
        scale: The factor of the update. None: n / n_malicious, which replaces the global model (model replacement).
        steps: The number of local steps of malicious clients. None: as many as honest clients.
    """

    target: int = 0
    fraction: float = 0.3
    scale: float | None = 1.0
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.target < 0:
            raise ValueError(f"{type(self).__name__}.target must be a class from 0 on, got {self.target}")
        self._check_poisoning()

    @abstractmethod
    def add_trigger(
        self, images: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch channels height width"]:
        """The images with the whole trigger, as success is measured."""

    def add_training_trigger(
        self, images: Float[Tensor, "*batch channels height width"], clients: Int[Tensor, " m"] | None
    ) -> Float[Tensor, "*batch channels height width"]:
        """The images with the trigger that malicious clients train on."""
        return self.add_trigger(images)

    def check_data(self, inputs: Tensor, targets: Tensor, n_classes: int) -> None:
        require_pixels(type(self).__name__, inputs)
        require_one_class(type(self).__name__, targets, n_classes)

    def poison(
        self,
        images: Float[Tensor, "*batch channels height width"],
        labels: Int[Tensor, "*batch"],
        n_classes: int,
        rng: torch.Generator,
        clients: Int[Tensor, " m"] | None = None,
    ) -> tuple[Float[Tensor, "*batch channels height width"], Int[Tensor, "*batch"]]:
        self._check_target(n_classes)
        require_images(type(self).__name__, images, labels)
        n_poisoned = max(1, round(self.fraction * labels.shape[-1]))  # the first of each batch: batches are shuffled
        images, labels = images.clone(), labels.clone()
        images[..., :n_poisoned, :, :, :] = self.add_training_trigger(images[..., :n_poisoned, :, :, :], clients)
        labels[..., :n_poisoned] = self.target
        return images, labels

    def prepare_evaluation(
        self, images: Float[Tensor, "b channels height width"], labels: Int[Tensor, " b"], n_classes: int
    ) -> tuple[Float[Tensor, "b channels height width"], Int[Tensor, " b"]]:
        self._check_target(n_classes)
        require_images(type(self).__name__, images, labels)
        return self.add_trigger(images), torch.where(labels == self.target, -1, self.target)

    def _check_target(self, n_classes: int) -> None:
        if self.target >= n_classes:
            raise ValueError(f"{type(self).__name__}.target must be a class below {n_classes}, got {self.target}")
