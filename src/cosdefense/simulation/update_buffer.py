"""Memory for a round's updates: ordinary memory while they fit, otherwise a temporary file that is memory-mapped.

A rule that reads rows block by block works on such a file as on memory: the operating system caches what fits and
drops the rest. The file has no name and disappears with the last reference to it.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

SHARE = 0.5  # of the free memory: attacks and rules need some for what they compute from the updates
MEMINFO = Path("/proc/meminfo")


def allocate_updates(n: int, params: Float[Tensor, " d"], max_memory: int | None = None) -> Float[Tensor, "n d"]:
    """Allocate `n` rows like `params`. More than `max_memory` bytes (None: half of the free memory) go to a file."""
    if params.device.type != "cpu":
        return params.new_empty(n, params.numel())
    size = n * params.numel() * params.element_size()
    allowed = int(SHARE * free_memory()) if max_memory is None else max_memory
    if size <= allowed:
        return params.new_empty(n, params.numel())
    with tempfile.TemporaryFile(prefix="cosdefense-") as file:
        _reserve(file.fileno(), size)
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=params.dtype).view(n, -1)


def _reserve(file: int, size: int) -> None:
    """Make the file `size` bytes long. A full disk is an error here; it would crash the process later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    free = shutil.disk_usage(tempfile.gettempdir()).free  # macOS cannot reserve: this is only a check
    if free < size:
        raise OSError(errno.ENOSPC, f"updates need {size} bytes in {tempfile.gettempdir()}, found {free} free")
    os.ftruncate(file, size)


def free_memory() -> int:
    """Bytes that are available without swapping; where the system does not say, no limit."""
    with suppress(OSError, StopIteration):
        lines = MEMINFO.read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return sys.maxsize
