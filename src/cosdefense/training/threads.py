"""Independent pieces of work on a CPU, several at a time.

Threads inside of an operation wait for each other at its end, and a small network is many small operations. Threads
that each do a whole piece of work never wait. torch lets go of the interpreter while it computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from .task import Task

MOST = 8  # pieces at a time: each takes memory for a whole step; more threads than that share a piece

QUICK = 0.005  # seconds: shorter pieces become slower in threads, which wait for each other's turn at the interpreter

_lasted = WeakKeyDictionary[Task, dict[str, float]]()  # seconds of one piece the last time, by kind of work

Result = TypeVar("Result")


def map_in_threads(task: Task, work: Callable[[Task, int], Result], n: int, device: torch.device) -> list[Result]:
    """`work` of every number below `n`, in that order; each thread has a task of its own. A GPU needs no threads.

    Nor does work whose pieces were quick the last time: that is done here, on as many of torch's threads as one of ours
    would have, so that it decides no bit who does it.
    """
    n_threads = torch.get_num_threads()
    n_workers = min(n_threads, n, MOST)
    if n_workers <= 1 or device.type != "cpu":
        return [work(task, i) for i in range(n)]
    lasted = _lasted.setdefault(task, {})
    quick = lasted.get(work.__qualname__, QUICK) < QUICK
    try:
        torch.set_num_threads(n_threads // n_workers)
        results, seconds = _in_threads(task, work, n, 1 if quick else n_workers)
    finally:
        torch.set_num_threads(n_threads)  # also what later threads start with
    if results is None:
        return [work(task, i) for i in range(n)]
    lasted[work.__qualname__] = seconds / n
    return results


def _in_threads(
    task: Task, work: Callable[[Task, int], Result], n: int, n_workers: int
) -> tuple[list[Result] | None, float]:
    """Each with as many of torch's threads as this one has, and the seconds of all pieces. A single one is this one.

    None for work that draws from torch's global stream, which must be done in turn: the numbers would depend on who
    comes first. Once that is seen, nothing more is begun, and the stream is put back.
    """
    n_threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    stream, left, found = torch.get_rng_state(), iter(range(n)), dict[int, Result]()

    def drawn() -> bool:
        return not torch.equal(stream, torch.get_rng_state())

    def does_pieces(own: Task) -> float:
        start = time.thread_time()  # not counting the time that others have the core, or the interpreter
        for i in left:
            if drawn():
                break
            found[i] = work(own, i)
        return time.thread_time() - start

    def worker() -> float:
        torch.set_num_threads(n_threads)
        with torch.set_grad_enabled(grad), _emptied(left):  # every thread has its own idea of gradients
            return does_pieces(task.twin())

    if n_workers == 1:
        seconds = does_pieces(task)
    else:
        with ThreadPoolExecutor(n_workers) as pool, _emptied(left):
            seconds = sum(future.result() for future in [pool.submit(worker) for _ in range(n_workers)])
    if drawn():
        torch.set_rng_state(stream)
        return None, seconds
    return [found[i] for i in range(n)], seconds


@contextmanager
def _emptied(left: Iterator[int]) -> Iterator[None]:
    """Whoever leaves, by Ctrl-C or a failure or at the end, leaves nothing for others to begin."""
    try:
        yield
    finally:
        for _ in left:
            pass
