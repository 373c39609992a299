"""Room for a round's updates: memory while they fit, then a file that goes with the last reference to it.

A rule that reads rows block by block works on such a file as it does in memory: the operating system keeps what it
can and drops what it must.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

SHARE = 0.5  # of the free memory: what attacks and rules make of the updates needs some too


def room(n: int, params: Float[Tensor, " d"], memory: int | None = None) -> Float[Tensor, "n d"]:
    """Rows to write one vector like `params` each into. `memory`: bytes they may take (None: half of what is free)."""
    size = n * params.numel() * params.element_size()
    allowed = int(SHARE * free_memory()) if memory is None else memory
    if params.device.type != "cpu" or size <= allowed:
        return params.new_empty(n, params.numel())
    with tempfile.TemporaryFile(prefix="cosdefense-") as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and would be a crash later
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=params.dtype).view(n, -1)


def free_memory() -> int:
    """Bytes that can be had without swapping; where the system does not say, as many as there can be."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return sys.maxsize
