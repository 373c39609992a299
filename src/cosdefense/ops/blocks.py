"""Rows are read a block of columns at a time, so that what a kernel needs beside them stays small and in the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 1 << 18  # numbers at a time: 2 MB in float64
GPU_BLOCK = 1 << 25  # on a GPU it costs more to start a kernel than to run it
HUGE = 1 << 22  # bytes from which on numpy asks for huge pages
STRETCHES = 64  # at most: enough for as many threads, and to even out what a busy core costs one of them

_kept = deque[Any]()  # blocks of memory that nobody uses at the moment; numpy's know nothing of inference mode


def columns_per_block(rows: Float[Tensor, "n k"]) -> int:
    return max(1, (BLOCK if rows.device.type == "cpu" else GPU_BLOCK) // max(1, len(rows)))


def blocks(rows: Float[Tensor, "n k"]) -> Iterator[Tensor]:
    """Views of the rows, side by side."""
    yield from torch.split(rows, columns_per_block(rows), dim=1)


def stretches(rows: Float[Tensor, "n k"]) -> list[slice]:
    """The columns cut into stretches of whole blocks, to be given to threads; one on a GPU.

    How many does not depend on the number of threads, so that sums over them do not either. n × n numbers for each
    stretch take no more memory than a quarter of float32 rows.
    """
    n, columns = rows.shape
    most = min(STRETCHES, columns // (8 * n)) if rows.device.type == "cpu" and n else 1
    step = columns_per_block(rows)
    width = step * max(1, -(-columns // (step * max(1, most))))
    return [slice(start, start + width) for start in range(0, max(1, columns), width)]


def groups(rows: Float[Tensor, "n k"]) -> list[slice]:
    """The rows in groups that fill two blocks or more, to be given to threads; one group on a GPU.

    Where rows do not meet, better than `stretches`: a long piece of one row is read faster than short ones of many.
    """
    size = max(1, 2 * BLOCK // max(1, rows.shape[1])) if rows.device.type == "cpu" else len(rows)
    return [slice(start, start + size) for start in range(0, max(1, len(rows)), max(1, size))]


def wide_blocks(
    rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None = None, members: Int[Tensor, " m"] | None = None
) -> Iterator[Tensor]:
    """The rows (or some of them) less `center` in float64, a block at a time.

    All blocks share their memory, and the reader may write to it: a fresh page costs more than the arithmetic on it.
    """
    n, step = len(rows) if members is None else len(members), columns_per_block(rows)
    with _memory(n * min(step, rows.shape[1]), rows.device) as memory:
        for start in range(0, rows.shape[1], step):
            block = rows[:, start : start + step]
            wide = memory[: n * block.shape[1]].view(n, -1)
            wide.copy_(block if members is None else block[members])
            if center is not None:
                wide -= center[start : start + step].double()
            yield wide


@contextmanager
def _memory(numbers: int, device: torch.device) -> Iterator[Tensor]:
    """Float64 numbers to write to.

    On a CPU a block's are kept for whoever asks next, one block per thread: left to the allocator, a thread's memory
    goes back to the system and comes again in fresh pages.
    """
    if device.type != "cpu" or numbers > BLOCK:
        yield torch.empty(numbers, dtype=torch.float64, device=device)
        return
    try:
        memory = _kept.pop()
    except IndexError:
        memory = np.empty(0)
    if len(memory) < numbers:
        memory = np.empty(BLOCK)
    try:
        yield torch.from_numpy(memory)
    finally:
        _kept.append(memory)


def fresh(columns: int, like: Tensor) -> Float[Tensor, " k"]:
    """Memory for a result.

    A large one by numpy, which asks Linux for huge pages: getting torch's, 4 kB each, takes longer than using them.
    """
    if like.device.type != "cpu" or columns * like.element_size() < HUGE:
        return torch.empty(columns, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.empty(columns * like.element_size(), dtype=np.uint8)).view(like.dtype)
