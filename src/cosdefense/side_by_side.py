"""Independent pieces of work on a CPU, several at a time.

Threads inside of an operation wait for each other at its end, and a small network is many small operations. Threads
that each do a whole piece of work never wait. torch lets go of the interpreter while it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from .task import Task

MOST = 8  # pieces at a time: each takes memory for a whole step; more threads than that share a piece

Result = TypeVar("Result")


def side_by_side(task: Task, work: Callable[[Task, int], Result], n: int, device: torch.device) -> list[Result]:
    """`work` of every number below `n`, in that order; each thread has a task of its own. A GPU needs no threads.

    Work that draws from torch's global stream must be done in turn, or the numbers would depend on who comes first:
    once that is seen, nothing more is begun, the stream is put back, and everything is done again.
    """
    n_threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    n_workers = min(n_threads, n, MOST)
    if n_workers <= 1 or device.type != "cpu":
        return [work(task, i) for i in range(n)]
    stream, left, found = torch.get_rng_state(), iter(range(n)), dict[int, Result]()

    def drawn() -> bool:
        return not torch.equal(stream, torch.get_rng_state())

    def worker() -> None:
        torch.set_num_threads(n_threads // n_workers)
        with torch.set_grad_enabled(grad), _emptied(left):  # every thread has its own idea of gradients
            own = task.twin()
            for i in left:
                if drawn():
                    break
                found[i] = work(own, i)

    try:
        with ThreadPoolExecutor(n_workers) as pool, _emptied(left):
            for future in [pool.submit(worker) for _ in range(n_workers)]:
                future.result()
    finally:
        torch.set_num_threads(n_threads)  # the caller's own did not change, but what later threads start with did
    if not drawn():
        return [found[i] for i in range(n)]
    torch.set_rng_state(stream)
    return [work(task, i) for i in range(n)]


@contextmanager
def _emptied(left: Iterator[int]) -> Iterator[None]:
    """Whoever leaves, by Ctrl-C or a failure or at the end, leaves nothing for others to begin."""
    try:
        yield
    finally:
        for _ in left:
            pass
