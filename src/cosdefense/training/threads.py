"""Independent pieces of work on a CPU, several at a time.

Threads inside an operation wait for each other at its end, and a small network is many small operations. Threads
that each do a whole piece of work never wait. torch releases the interpreter lock while it computes.
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

MAX_WORKERS = 8  # each takes memory for a whole step; beyond that, several of torch's threads share a piece
MIN_SECONDS = 0.005  # shorter pieces become slower in threads, which then wait for the interpreter lock

_seconds_per_piece = WeakKeyDictionary[Task, dict[str, float]]()  # measured the last time, by kind of work

Result = TypeVar("Result")


def map_in_threads(
    task: Task,
    work: Callable[[Task, int], Result],
    n: int,
    device: torch.device,
    min_seconds: float = MIN_SECONDS,
) -> list[Result]:
    """Return `work(task, i)` for every i below `n`, in that order. Each thread works on its own copy of the task.

    No threads are started on a GPU, nor for work whose pieces took less than `min_seconds` the last time. Such work
    runs in the calling thread, with as many of torch's threads as one worker would have, so the bits are the same.

    torch's thread count is lowered while this runs and restored at the end, also after an exception. The count
    belongs to the whole process: other Python threads that start meanwhile begin with the lowered one.
    """
    n_threads = torch.get_num_threads()
    n_workers = min(n_threads, n, MAX_WORKERS)
    if n_workers <= 1 or device.type != "cpu":
        return [work(task, i) for i in range(n)]
    measured = _seconds_per_piece.setdefault(task, {})
    is_short = measured.get(work.__qualname__, min_seconds) < min_seconds
    try:
        torch.set_num_threads(n_threads // n_workers)
        results, seconds = _run(task, work, n, 1 if is_short else n_workers)
    finally:
        torch.set_num_threads(n_threads)
    if results is None:
        return [work(task, i) for i in range(n)]
    measured[work.__qualname__] = seconds / n
    return results


def _run(task: Task, work: Callable[[Task, int], Result], n: int, n_workers: int) -> tuple[list[Result] | None, float]:
    """Return the results and the CPU seconds of all pieces. With one worker, the calling thread does the work.

    The results are None for work that draws from torch's global random stream: it must run in order, or the numbers
    would depend on which thread comes first. As soon as that is seen nothing more starts, and the stream is restored.
    """
    n_threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    stream, remaining, results = torch.get_rng_state(), iter(range(n)), dict[int, Result]()

    def stream_moved() -> bool:
        return not torch.equal(stream, torch.get_rng_state())

    def run_pieces(own_task: Task) -> float:
        start = time.thread_time()  # excludes the time in which other threads have the core or the interpreter
        for i in remaining:
            if stream_moved():
                break
            results[i] = work(own_task, i)
        return time.thread_time() - start

    def run_worker() -> float:
        torch.set_num_threads(n_threads)
        with torch.set_grad_enabled(grad), _exhaust_at_exit(remaining):  # gradient mode is a setting of each thread
            return run_pieces(task.copy_for_thread())

    if n_workers == 1:
        seconds = run_pieces(task)
    else:
        with ThreadPoolExecutor(n_workers) as pool, _exhaust_at_exit(remaining):
            seconds = sum(future.result() for future in [pool.submit(run_worker) for _ in range(n_workers)])
    if stream_moved():
        torch.set_rng_state(stream)
        return None, seconds
    return [results[i] for i in range(n)], seconds


@contextmanager
def _exhaust_at_exit(remaining: Iterator[int]) -> Iterator[None]:
    """Leave no pieces for other threads to start, also after Ctrl-C or a failure."""
    try:
        yield
    finally:
        for _ in remaining:
            pass
