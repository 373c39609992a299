"""Label flip: train on wrong labels.

All classes, c → C − 1 − c: Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust
Federated Learning. USENIX Security 2020. https://arxiv.org/abs/1911.11815
One class, source → target: Tolpegin, Truex, Gursoy, Liu. Data Poisoning Attacks Against Federated
Learning Systems. ESORICS 2020. https://arxiv.org/abs/2007.08432
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from ..core.sample_checks import require_classes
from .attack import Attack, Samples


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Malicious clients train with label C − 1 − c instead of c, or with `target` instead of `source`.

    C is the number of classes. `source` and `target` are given together or not at all.

    Args:
        source: The class whose images get a wrong label. None: all classes.
        target: The label that they get. None: C − 1 − c.
    """

    source: int | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise ValueError(f"LabelFlip needs both source and target, or neither, got {self.source} and {self.target}")
        if self.source is not None and self.target is not None and min(self.source, self.target) < 0:
            raise ValueError(f"LabelFlip needs classes from 0 on, got {self.source} and {self.target}")
        if self.source is not None and self.source == self.target:
            raise ValueError(f"LabelFlip needs a source that differs from its target, got {self.source} for both")

    def check_data(self, inputs: Samples, targets: Samples, n_classes: int) -> None:
        require_classes(type(self).__name__, targets, n_classes)

    def poison(
        self,
        images: Samples,
        labels: Samples,
        n_classes: int,
        rng: torch.Generator,
        clients: Int[Tensor, " m"] | None = None,
    ) -> tuple[Samples, Samples]:
        return images, self._flip(labels, n_classes)

    def prepare_evaluation(self, images: Samples, labels: Samples, n_classes: int) -> tuple[Samples, Samples]:
        wanted = self._flip(labels, n_classes)
        return images, torch.where(wanted == labels, -1, wanted)

    def _flip(self, labels: Samples, n_classes: int) -> Samples:
        if self.source is None or self.target is None:
            return n_classes - 1 - labels
        if not (0 <= self.source < n_classes and 0 <= self.target < n_classes):
            raise ValueError(f"LabelFlip needs classes below {n_classes}, got {self.source} and {self.target}")
        return torch.where(labels == self.source, self.target, labels)
