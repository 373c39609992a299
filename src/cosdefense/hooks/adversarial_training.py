"""FAT, federated adversarial training: clients train on images perturbed to maximize the loss.

Zizzo, Rawat, Sinn, Buesser. FAT: Federated Adversarial Training. 2020. https://arxiv.org/abs/2012.01791

It hardens the model against adversarial images. It does not keep poisoned updates out. The paper's epsilon and
number of steps could not be confirmed; the defaults are those of a public re-implementation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..core import ClientHook, Loss
from ..core.sample_checks import require_pixels


@dataclass(frozen=True)
class AdversarialTraining(ClientHook):
    """x ← x + δ with δ = argmax ℓ(x + δ, y) over ‖δ‖∞ ≤ epsilon, by projected gradient ascent.

    Args:
        epsilon: The largest change of a pixel in [0, 1]. 0.3 is common for MNIST, 8/255 for CIFAR-10.
        steps: The number of ascent steps.
        step_size: The size of one step. None is 2.5 epsilon / steps, which can reach every corner.
    """

    epsilon: float = 0.1
    steps: int = 10
    step_size: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"AdversarialTraining.epsilon must be in (0, 1], got {self.epsilon}")
        if self.steps < 1:
            raise ValueError(f"AdversarialTraining.steps must be at least 1, got {self.steps}")
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(f"AdversarialTraining.step_size must be positive and finite, got {self.step_size}")

    def check_data(self, inputs: Tensor, targets: Tensor, n_classes: int) -> None:
        require_pixels(type(self).__name__, inputs)

    def batch(
        self, loss: Loss, images: Float[Tensor, "b *shape"], labels: Shaped[Tensor, "b *targets"]
    ) -> tuple[Float[Tensor, "b *shape"], Shaped[Tensor, "b *targets"]]:
        # Starts from the image itself, not from a random point, so that the result is deterministic.
        size = self.step_size or 2.5 * self.epsilon / self.steps
        moved = images
        for _ in range(self.steps):
            moved = moved + size * torch.func.grad(loss)(moved, labels).sign()
            moved = (images + (moved - images).clamp(-self.epsilon, self.epsilon)).clamp(0, 1)
        return moved, labels
