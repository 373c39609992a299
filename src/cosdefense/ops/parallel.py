"""Distribute pieces of work over threads.

Torch's own threads share every single call and wait for each other after it. With calls as short as those on one
block, they wait longer than they work, and on a busy machine they wait for the slowest core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def map_in_threads(work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> Iterator[Result]:
    """`work(piece)` for every piece, in order. Uses as many threads as torch is set to; each call has one."""
    threads = torch.get_num_threads()
    if min(threads, len(pieces)) <= 1:
        yield from map(work, pieces)
        return
    try:
        with ThreadPoolExecutor(min(threads, len(pieces)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(work, pieces)
    finally:
        torch.set_num_threads(threads)  # setting it in a thread also changes the default of later threads
