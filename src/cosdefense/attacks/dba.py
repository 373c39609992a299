"""DBA, distributed backdoor: every malicious client trains on a part of the trigger; success needs the whole.

Xie, Huang, Chen, Li. DBA: Distributed Backdoor Attacks against Federated Learning. ICLR 2020.
https://openreview.net/forum?id=rkgyS0VFvr
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from ._trigger import TriggerAttack

N_PARTS = 4


@dataclass(frozen=True)
class DBA(TriggerAttack):
    """The backdoor with a trigger of four white bars; a malicious client adds one of them, by its identity modulo 4.

    The bars are `length` pixels wide and one pixel high, two in the first row and two in the row `row`, with `gap`
    pixels between them. Success is measured with all four. The defaults fit small images. The authors' trigger for
    MNIST has a length of 4, a gap of 2 and the row 3, that for CIFAR-10 a length of 6, a gap of 3 and the row 4. They
    poison 20 of 64 images (5 for CIFAR-10), and either scale by 100 at a server rate of 0.1 or attack in every round
    without scaling.

    Args:
        length: The width of a bar, in pixels.
        gap: The distance between two bars of a row, in pixels.
        row: The row of the lower bars.
        part: The bar that all malicious clients add, from 0 to 3. None: by identity. A client that does not know its
            identity (in a real federation) adds the first.
    """

    length: int = 3
    gap: int = 1
    row: int = 2
    part: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("length", 1), ("gap", 0), ("row", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"DBA.{name} must be at least {least}, got {getattr(self, name)}")
        if self.part is not None and not 0 <= self.part < N_PARTS:
            raise ValueError(f"DBA.part must be from 0 to {N_PARTS - 1}, got {self.part}")

    def add_trigger(
        self, images: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch channels height width"]:
        images = images.clone()
        for part in range(N_PARTS):
            self._add_bar(images, part)
        return images

    def add_training_trigger(
        self, images: Float[Tensor, "*batch channels height width"], clients: Int[Tensor, " m"] | None
    ) -> Float[Tensor, "*batch channels height width"]:
        images = images.clone()
        if self.part is not None or clients is None:
            self._add_bar(images, self.part or 0)
            return images
        for row, client in enumerate(clients.tolist()):
            self._add_bar(images[row], client % N_PARTS)
        return images

    def _add_bar(self, images: Float[Tensor, "*batch channels height width"], part: int) -> None:
        """Write one bar into the images."""
        height, width = images.shape[-2:]
        if self.row >= height or 2 * self.length + self.gap > width:
            raise ValueError(
                f"DBA needs images of at least {self.row + 1} × {2 * self.length + self.gap}, got {height} × {width}"
            )
        left = (part % 2) * (self.length + self.gap)
        images[..., (part // 2) * self.row, left : left + self.length] = 1.0
