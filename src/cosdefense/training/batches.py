"""Inputs in memory and the batches drawn from them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

Batch = Float[Tensor, "m *shape"] | Int[Tensor, "m *shape"]


def to_unit_range(inputs: Shaped[Tensor, "m *shape"]) -> Batch:
    """Convert bytes, which are pixels, to numbers in [0, 1]; other inputs are returned as they are."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs


def draw_rows(rows: Int[Tensor, " own"], n: int, rng: torch.Generator) -> Int[Tensor, " n"]:
    """Draw `n` of a client's rows, reshuffled whenever all of them have been used."""
    passes = -(-n // len(rows))
    return rows[torch.cat([torch.randperm(len(rows), generator=rng) for _ in range(passes)])[:n]]
