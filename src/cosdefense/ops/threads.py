"""Pieces of the work handed to threads of our own.

Torch's own threads share every single call and wait for each other after it. With calls as short as a block's, they
wait longer than they work, and on a busy machine for as long as the one that lost its core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def in_threads(work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> Iterator[Result]:
    """What `work` makes of every piece, in their order: as many at a time as torch has threads, each by one thread."""
    threads = torch.get_num_threads()
    if min(threads, len(pieces)) <= 1:
        yield from map(work, pieces)
        return
    try:
        with ThreadPoolExecutor(min(threads, len(pieces)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(work, pieces)
    finally:
        torch.set_num_threads(threads)  # a thread's own setting is also the default of threads that come later
