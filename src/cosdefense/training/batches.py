"""Images in memory and the batches drawn from them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

Pixels = UInt8[Tensor, "m *shape"] | Float[Tensor, "m *shape"]  # bytes 0 … 255, or numbers in [0, 1]


def pixels(images: Pixels) -> Float[Tensor, "m *shape"]:
    """Numbers in [0, 1] from stored bytes."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def draw(own: Int[Tensor, " own"], n: int, rng: torch.Generator) -> Int[Tensor, " n"]:
    """`n` of a client's rows, reshuffled whenever all of them have been used."""
    passes = -(-n // len(own))
    return own[torch.cat([torch.randperm(len(own), generator=rng) for _ in range(passes)])[:n]]
