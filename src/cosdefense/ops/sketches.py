"""Short sketches of rows: their inner products are nearly those of the rows."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from .blocks import BLOCK, GPU_BLOCK
from .norms import row_norms


def unit_sketches(rows: Float[Tensor, "n k"], size: int, seed: int) -> Float[Tensor, "n s"]:
    """Sketches of the directions of the rows, in float32: inner products of two of them are nearly the rows' cosines.

    Coordinates get random signs, and those at a distance of `size` are added up: neighbors, which belong to one filter
    or neuron and are large together, go to different places. The error of a cosine is about 1 / √size. Who knows the
    seed can send a row whose sketch says nothing about it, so it must be a secret. Rows of up to `size` coordinates
    are only scaled. A zero row has a zero sketch.
    """
    rows = rows.detach()
    n, k = rows.shape
    norms = row_norms(rows).double()
    scale = torch.where(norms > 0, norms, 1)[:, None]
    if k <= size:
        return (rows.double() / scale).float()
    signs = _draw_signs(k, seed, str(rows.device))
    sketches = torch.zeros(n, size, dtype=torch.float64, device=rows.device)
    block = BLOCK if rows.device.type == "cpu" else GPU_BLOCK
    step = size * max(1, block // max(1, n * size))
    for start in range(0, k, step):
        wide = rows[:, start : start + step].to(torch.float64, copy=True)
        wide.div_(scale).mul_(signs[start : start + step])
        if wide.shape[1] % size:
            wide = torch.nn.functional.pad(wide, (0, size - wide.shape[1] % size))
        sketches += wide.view(n, -1, size).sum(dim=1)
    return sketches.float()


@lru_cache(maxsize=4)
def _draw_signs(k: int, seed: int, device: str) -> Int8[Tensor, " k"]:
    """Kept, because drawing them takes longer than using them."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (k,), generator=rng, dtype=torch.int8).mul_(2).sub_(1).to(device)
