"""Several processes of this machine share a list of runs.

Each goes through the whole list and makes what is neither finished nor being made: the runs' locks keep them apart. A
process that dies loses only the rounds since its last checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from .data_section import DatasetLoader, load_dataset
from .device import choose_device
from .experiment import to_table
from .experiment_file import from_table
from .files import PRIVATE
from .gpu_sharing import environment, shared_gpu
from .many_runs import make_runs
from .memory import keep_freed_memory
from .observer import Job, Observer
from .records import RoundRecord

STOP_SECONDS = 30.0  # for a process to save its run before it is killed


@dataclass(frozen=True)
class JobTable:
    """A job that can be sent to another process: parts are imported there, from the same folder."""

    table: Mapping[str, Any]
    source: Path | None
    folder: Path
    label: str

    @classmethod
    def of(cls, job: Job) -> JobTable:
        return cls(to_table(job.cell), job.cell.source, job.folder, job.label)

    def job(self) -> Job:
        return Job(from_table(self.table, self.source), self.folder, self.label)


@dataclass(frozen=True)
class Work:
    """All that a process needs to know."""

    jobs: Sequence[JobTable]
    device: str
    n_threads: int | None  # None: as torch chooses
    data_dir: Path | None
    notes: Mapping[str, Any]
    log: Path


@dataclass(frozen=True)
class Worker:
    """A process as its parent sees it."""

    process: SpawnProcess
    events: Connection
    log: Path


def run_in_processes(
    jobs: Sequence[Job],
    n: int,
    *,
    device: torch.device,
    n_threads: int | None,
    data_dir: Path | None,
    notes: Mapping[str, Any],
    observer: Observer,
    logs: Path,
) -> None:
    """Let n processes make the runs, and follow them. Whatever ends this early, every run is saved first."""
    logs.mkdir(parents=True, exist_ok=True)
    tables = [JobTable.of(job) for job in jobs]
    files = [logs / f"process-{number}.log" for number in range(1, n + 1)]
    work = [Work(tables, str(device), n_threads, data_dir, notes, file) for file in files]
    with shared_gpu(device) as variables, _running(work, variables) as workers:
        _follow(workers, jobs, observer)
        for number, worker in enumerate(workers, start=1):
            worker.process.join()
            if worker.process.exitcode:
                observer.note(f"process {number} ended early, see {worker.log}")


@contextmanager
def _running(work: Sequence[Work], variables: Mapping[str, str]) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        with environment(variables):
            for piece in work:
                workers.append(_start(piece))
        yield workers
    finally:
        _stop(workers)


def _start(work: Work) -> Worker:
    context = multiprocessing.get_context("spawn")
    events, sender = context.Pipe(duplex=False)
    process = context.Process(target=make_shared_runs, args=(work, sender), daemon=True)
    with _interrupts_ignored():  # inherited: Ctrl-C is for the parent, which then stops its processes
        process.start()
    sender.close()  # now the pipe ends with the process
    return Worker(process, events, work.log)


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()  # its run is resumed from the last checkpoint
            worker.process.join()
        worker.events.close()


def _follow(workers: Sequence[Worker], jobs: Sequence[Job], observer: Observer) -> None:
    """Pass on what the processes report until all have ended."""
    pipes = [worker.events for worker in workers]
    while pipes:
        for pipe in wait(pipes):
            assert isinstance(pipe, Connection)
            try:
                event, index, *details = pipe.recv()
            except (EOFError, OSError):  # the process has ended, perhaps in the middle of a message
                pipes.remove(pipe)
            else:
                getattr(observer, event)(jobs[index], *details)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def make_shared_runs(work: Work, events: Connection) -> None:
    """What a process does: all that is left of the work, until SIGTERM or the end of its parent."""
    _redirect_output(work.log)
    signal.signal(signal.SIGTERM, _interrupt)
    if work.n_threads:
        torch.set_num_threads(work.n_threads)
    keep_freed_memory()
    jobs = [table.job() for table in work.jobs]
    load = DatasetLoader(partial(load_dataset, data_dir=work.data_dir))
    try:
        make_runs(jobs, load, choose_device(work.device), work.notes, EventSender(jobs, events), skip_in_use=True)
    except (KeyboardInterrupt, BrokenPipeError):
        return


class EventSender(Observer):
    """Sends what happens to the parent."""

    def __init__(self, jobs: Sequence[Job], events: Connection) -> None:
        self._indices = {job.folder: index for index, job in enumerate(jobs)}
        self._events = events

    def run_started(self, job: Job) -> None:
        self._events.send(("run_started", self._indices[job.folder]))

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        self._events.send(("round_recorded", self._indices[job.folder], record))

    def run_finished(self, job: Job) -> None:
        self._events.send(("run_finished", self._indices[job.folder]))


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the saving
    raise KeyboardInterrupt


def _redirect_output(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
