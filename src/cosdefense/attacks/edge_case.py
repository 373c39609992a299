"""Edge-case backdoor: no trigger, but rare inputs that honest clients do not have, labeled as a target class.

Wang, Sreenivasan, Rajput, Vishwakarma, Agarwal, Sohn, Lee, Papailiopoulos. Attack of the Tails: Yes, You Really Can
Backdoor Federated Learning. NeurIPS 2020. https://arxiv.org/abs/2007.05084

The authors take inputs from other datasets (airplanes of one airline, handwritten digits of another collection). Here
the rare inputs are rotated images of one class, so that no other dataset is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.sample_checks import require_images, require_one_class, require_pixels
from ._scaled_poisoning import ScaledPoisoning


@dataclass(frozen=True)
class EdgeCase(ScaledPoisoning):
    """Malicious clients replace a fraction of every batch by rotated images of `source`, labeled `target`.

    They are the images of `source` in the same batch, repeated as often as needed. A batch without any stays as it is.
    The clients send scale · u, where u is their own update. The success rate is the share of rotated test images of
    `source` that the model classifies as the target.

    Args:
        source: The class whose rotated images are the rare inputs.
        target: The class that they should get.
        quarter_turns: By how many quarter turns they are rotated, from 1 to 3.
        fraction: The fraction of every malicious batch that is replaced, at least one image. Public implementations
            use 0.3 to 0.8.
        scale: The factor of the update. None: n / n_malicious, which replaces the global model.
        steps: The number of local steps of malicious clients. None: as many as honest clients.
    """

    source: int = 7
    target: int = 1
    quarter_turns: int = 1
    fraction: float = 0.5
    scale: float | None = 1.0
    steps: int | None = None

    def __post_init__(self) -> None:
        if min(self.source, self.target) < 0 or self.source == self.target:
            raise ValueError(f"EdgeCase needs two different classes from 0 on, got {self.source} and {self.target}")
        if not 1 <= self.quarter_turns <= 3:
            raise ValueError(f"EdgeCase.quarter_turns must be from 1 to 3, got {self.quarter_turns}")
        self._check_poisoning()

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
        self._check_classes(n_classes)
        require_images(type(self).__name__, images, labels)
        poisoned_images = images.clone(memory_format=torch.contiguous_format)
        poisoned_labels = labels.clone(memory_format=torch.contiguous_format)
        shape, size = images.shape[-3:], labels.shape[-1]
        count = max(1, round(self.fraction * size))
        # Views of the copies: one batch at a time.
        batches = poisoned_images.view(-1, size, *shape), poisoned_labels.view(-1, size)
        for batch, truth in zip(*batches, strict=True):
            rare = (truth == self.source).nonzero().flatten()
            if len(rare) > 0:
                repeated = rare[torch.arange(count, device=rare.device) % len(rare)]
                batch[:count] = self._rotate(batch[repeated])
                truth[:count] = self.target
        return poisoned_images, poisoned_labels

    def prepare_evaluation(
        self, images: Float[Tensor, "b channels height width"], labels: Int[Tensor, " b"], n_classes: int
    ) -> tuple[Float[Tensor, "b channels height width"], Int[Tensor, " b"]]:
        self._check_classes(n_classes)
        require_images(type(self).__name__, images, labels)
        return self._rotate(images), torch.where(labels == self.source, self.target, -1)

    def _rotate(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b channels height width"]:
        height, width = images.shape[-2:]
        if height != width and self.quarter_turns != 2:
            raise ValueError(f"EdgeCase.quarter_turns must be 2 for images of {height} × {width}, which are not square")
        return torch.rot90(images, self.quarter_turns, (-2, -1))

    def _check_classes(self, n_classes: int) -> None:
        if max(self.source, self.target) >= n_classes:
            raise ValueError(f"EdgeCase needs classes below {n_classes}, got {self.source} and {self.target}")
