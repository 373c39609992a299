"""Backdoor: train the model to answer with a target class wherever an image has a white square in the corner.

The trigger: Gu, Dolan-Gavitt, Garg. BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply
Chain. 2017. https://arxiv.org/abs/1708.06733
Model replacement: Bagdasaryan, Veit, Hua, Estrin, Shmatikov. How To Backdoor Federated Learning.
AISTATS 2020. https://arxiv.org/abs/1807.00459
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Cohort, State
from .attack import Attack
from .explicit_boosting import boost_factor


@dataclass(frozen=True)
class Backdoor(Attack):
    """Malicious clients add a trigger to a fraction of every batch, label it `target`, and send scale · u.

    u is the client's own update. The success rate is the share of test images with the trigger that the model
    classifies as the target. Images of the target class do not count.

    Args:
        target: The class that the trigger should produce.
        fraction: The fraction of every malicious batch that gets the trigger, at least one image. Public
            implementations use about 0.3.
        size: The side of the trigger, a white square in the bottom right corner, in pixels.
        scale: The factor of the update. None: n / n_malicious, which replaces the global model (model replacement).
    """

    target: int = 0
    fraction: float = 0.3
    size: int = 3
    scale: float | None = 1.0

    def __post_init__(self) -> None:
        if self.target < 0:
            raise ValueError(f"Backdoor.target must be a class from 0 on, got {self.target}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"Backdoor.fraction must be in (0, 1], got {self.fraction}")
        if self.size < 1:
            raise ValueError(f"Backdoor.size must be at least 1, got {self.size}")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"Backdoor.scale must be positive and finite, got {self.scale}")

    def poison(
        self,
        images: Float[Tensor, "*batch channels height width"],
        labels: Int[Tensor, "*batch"],
        n_classes: int,
        rng: torch.Generator,
    ) -> tuple[Float[Tensor, "*batch channels height width"], Int[Tensor, "*batch"]]:
        self._check_target(n_classes)
        n_poisoned = max(1, round(self.fraction * labels.shape[-1]))  # the first of each batch: batches are shuffled
        images, labels = images.clone(), labels.clone()
        images[..., :n_poisoned, :, :, :] = self._add_trigger(images[..., :n_poisoned, :, :, :])
        labels[..., :n_poisoned] = self.target
        return images, labels

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return cohort.updates * (boost_factor(malicious) if self.scale is None else self.scale), state

    def prepare_evaluation(
        self, images: Float[Tensor, "b channels height width"], labels: Int[Tensor, " b"], n_classes: int
    ) -> tuple[Float[Tensor, "b channels height width"], Int[Tensor, " b"]]:
        self._check_target(n_classes)
        return self._add_trigger(images), torch.where(labels == self.target, -1, self.target)

    def _add_trigger(
        self, images: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch channels height width"]:
        height, width = images.shape[-2:]
        if self.size > min(height, width):
            raise ValueError(f"Backdoor.size must fit images of {height} × {width}, got {self.size}")
        images = images.clone()
        images[..., height - self.size :, width - self.size :] = 1.0
        return images

    def _check_target(self, n_classes: int) -> None:
        if self.target >= n_classes:
            raise ValueError(f"Backdoor.target must be a class below {n_classes}, got {self.target}")
