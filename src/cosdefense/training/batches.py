"""Images in memory and the batches drawn from them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

Images = UInt8[Tensor, "m *shape"] | Float[Tensor, "m *shape"]  # bytes 0 … 255, or numbers in [0, 1]


def to_unit_range(images: Images) -> Float[Tensor, "m *shape"]:
    """Convert bytes to numbers in [0, 1]; images that are numbers already are returned as they are."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def draw_rows(rows: Int[Tensor, " own"], n: int, rng: torch.Generator) -> Int[Tensor, " n"]:
    """Draw `n` of a client's rows, reshuffled whenever all of them have been used."""
    passes = -(-n // len(rows))
    return rows[torch.cat([torch.randperm(len(rows), generator=rng) for _ in range(passes)])[:n]]
