"""Backdoor: train the model to answer with a target class wherever an image has a white square in the corner.

The trigger: Gu, Dolan-Gavitt, Garg. BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply
Chain. 2017. https://arxiv.org/abs/1708.06733
Model replacement: Bagdasaryan, Veit, Hua, Estrin, Shmatikov. How To Backdoor Federated Learning.
AISTATS 2020. https://arxiv.org/abs/1807.00459
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ._trigger import TriggerAttack


@dataclass(frozen=True)
class Backdoor(TriggerAttack):
    """Malicious clients add a trigger to a fraction of every batch, label it `target`, and send scale · u.

    u is the client's own update. The success rate is the share of test images with the trigger that the model
    classifies as the target. Images of the target class do not count.

    Args:
        size: The side of the trigger, a white square in the bottom right corner, in pixels.
    """

    size: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise ValueError(f"{type(self).__name__}.size must be at least 1, got {self.size}")

    def add_trigger(
        self, images: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch channels height width"]:
        height, width = images.shape[-2:]
        if self.size > min(height, width):
            raise ValueError(f"{type(self).__name__}.size must fit images of {height} × {width}, got {self.size}")
        images = images.clone()
        images[..., height - self.size :, width - self.size :] = 1.0
        return images
