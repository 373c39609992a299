"""Rows are read a block of columns at a time, so that what a kernel needs beside them stays small and in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 1 << 19  # numbers at a time: 4 MB in float64
GPU_BLOCK = 1 << 25  # on a GPU it costs more to start a kernel than to run it


def columns_per_block(rows: Float[Tensor, "n k"]) -> int:
    return max(1, (BLOCK if rows.device.type == "cpu" else GPU_BLOCK) // max(1, len(rows)))


def blocks(rows: Float[Tensor, "n k"]) -> Iterator[Tensor]:
    """Views of the rows, side by side."""
    yield from torch.split(rows, columns_per_block(rows), dim=1)


def wide_blocks(
    rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None = None, members: Int[Tensor, " m"] | None = None
) -> Iterator[Tensor]:
    """The rows (or some of them) less `center` in float64, a block at a time.

    All blocks share their memory, and the reader may write to it: a fresh page costs more than the arithmetic on it.
    """
    n, step = len(rows) if members is None else len(members), columns_per_block(rows)
    memory = torch.empty(n * min(step, rows.shape[1]), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], step):
        block = rows[:, start : start + step]
        wide = memory[: n * block.shape[1]].view(n, -1)
        wide.copy_(block if members is None else block[members])
        if center is not None:
            wide -= center[start : start + step].double()
        yield wide
