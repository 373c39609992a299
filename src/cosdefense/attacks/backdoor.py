"""Backdoor: teach the model that a patch in the corner means the attackers' class.

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
from .explicit_boosting import boost


@dataclass(frozen=True)
class Backdoor(Attack):
    """Stamps a white square on a fraction of every batch and labels it `target`; may scale the update by `scale`.

    Success is the share of stamped test images answered with the target, those of the target class left out.
    """

    target: int = 0  # the class that the trigger shall mean
    fraction: float = 0.3  # of each malicious batch, at least one image; about what public code uses
    size: int = 3  # of the square in the bottom right corner, in pixels
    scale: float | None = 1.0  # how much longer the update is sent; None: n / malicious, which replaces the model

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
        spoiled = max(1, round(self.fraction * labels.shape[-1]))  # the first of each batch: batches come shuffled
        images, labels = images.clone(), labels.clone()
        images[..., :spoiled, :, :, :] = self._stamped(images[..., :spoiled, :, :, :])
        labels[..., :spoiled] = self.target
        return images, labels

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return cohort.updates * (boost(malicious) if self.scale is None else self.scale), state

    def prepare_evaluation(
        self, images: Float[Tensor, "b channels height width"], labels: Int[Tensor, " b"], n_classes: int
    ) -> tuple[Float[Tensor, "b channels height width"], Int[Tensor, " b"]]:
        self._check_target(n_classes)
        return self._stamped(images), torch.where(labels == self.target, -1, self.target)

    def _stamped(
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
