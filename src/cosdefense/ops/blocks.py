"""Rows are read one block of columns at a time, so that temporary memory stays small and in the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 1 << 18  # numbers in a block: 2 MB in float64
GPU_BLOCK = 1 << 25  # larger, because launching a small GPU kernel costs more than running it
HUGE_PAGE_BYTES = 1 << 22  # from this size on, numpy asks for huge pages
MAX_RANGES = 64  # enough for as many threads, and to even out the delay of a busy core

_free_buffers = deque[Any]()  # blocks not in use; numpy arrays, because they are independent of inference mode


def columns_per_block(rows: Float[Tensor, "n k"]) -> int:
    return max(1, (BLOCK if rows.device.type == "cpu" else GPU_BLOCK) // max(1, len(rows)))


def split_columns(rows: Float[Tensor, "n k"]) -> Iterator[Tensor]:
    """Views of consecutive blocks of columns."""
    yield from torch.split(rows, columns_per_block(rows), dim=1)


def column_ranges(rows: Float[Tensor, "n k"]) -> list[slice]:
    """Ranges of columns to distribute over threads, each a whole number of blocks; one range on a GPU.

    Their number does not depend on the number of threads, so that sums over them do not either. n × n numbers per
    range take at most a quarter of the memory of float32 rows.
    """
    n, columns = rows.shape
    n_ranges = min(MAX_RANGES, columns // (8 * n)) if rows.device.type == "cpu" and n else 1
    step = columns_per_block(rows)
    width = step * max(1, -(-columns // (step * max(1, n_ranges))))
    return [slice(start, start + width) for start in range(0, max(1, columns), width)]


def row_ranges(rows: Float[Tensor, "n k"]) -> list[slice]:
    """Ranges of rows to distribute over threads, each of two blocks or more; one range on a GPU.

    Where rows are independent this beats `column_ranges`: long pieces of memory are read faster than short ones.
    """
    size = max(1, 2 * BLOCK // max(1, rows.shape[1])) if rows.device.type == "cpu" else len(rows)
    return [slice(start, start + size) for start in range(0, max(1, len(rows)), max(1, size))]


def float64_blocks(
    rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None = None, members: Int[Tensor, " m"] | None = None
) -> Iterator[Tensor]:
    """The rows (or the `members` among them) minus `center` in float64, one block at a time.

    All blocks share one buffer that the caller may write to: a new memory page costs more than the arithmetic on it.
    """
    n, step = len(rows) if members is None else len(members), columns_per_block(rows)
    with _borrow_buffer(n * min(step, rows.shape[1]), rows.device) as buffer:
        for start in range(0, rows.shape[1], step):
            block = rows[:, start : start + step]
            wide = buffer[: n * block.shape[1]].view(n, -1)
            wide.copy_(block if members is None else block[members])
            if center is not None:
                wide -= center[start : start + step].double()
            yield wide


@contextmanager
def _borrow_buffer(size: int, device: torch.device) -> Iterator[Tensor]:
    """Room for `size` float64 numbers.

    On a CPU the buffers are kept for later calls, one per thread: the allocator would return a thread's memory to the
    system and fetch it again as new pages.
    """
    if device.type != "cpu" or size > BLOCK:
        yield torch.empty(size, dtype=torch.float64, device=device)
        return
    try:
        buffer = _free_buffers.pop()
    except IndexError:
        buffer = np.empty(0)
    if len(buffer) < size:
        buffer = np.empty(BLOCK)
    try:
        yield torch.from_numpy(buffer)
    finally:
        _free_buffers.append(buffer)


def allocate(columns: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " k"]:
    """Uninitialized memory for a result.

    A large one comes from numpy, which asks Linux for huge pages: fetching torch's pages of 4 kB takes longer than
    filling them.
    """
    if device.type != "cpu" or columns * dtype.itemsize < HUGE_PAGE_BYTES:
        return torch.empty(columns, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(columns * dtype.itemsize, dtype=np.uint8)).view(dtype)
