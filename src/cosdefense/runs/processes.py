"""Several processes of this machine share a list of runs.

Each goes through the whole list and makes what is neither finished nor being made: the runs' locks keep them apart. A
process that dies loses only the rounds since its last checkpoint.

Processes take seconds to import torch, to find the GPU and to read the data. They do so while the experiments are
checked, and begin when their parent says so.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from .many_runs import LoadData, make_runs
from .memory import keep_freed_memory
from .observer import Job, Observer
from .records import RoundRecord

Flags = Any  # an array of bytes that processes share

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
    begin: Connection  # a message lets it begin
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
    check: Callable[[], None],
) -> None:
    """Let n processes make the runs, and follow them. Whatever ends this early, every run is saved first.

    They begin after `check`, and not at all if it raises an error.
    """
    logs.mkdir(parents=True, exist_ok=True)
    tables = [JobTable.of(job) for job in jobs]
    files = [logs / f"process-{number}.log" for number in range(1, n + 1)]
    work = [Work(tables, str(device), n_threads, data_dir, notes, file) for file in files]
    done = multiprocessing.get_context("spawn").RawArray("b", len(jobs))
    with shared_gpu(device, observer.note) as variables, _running(work, done, variables) as workers:
        check()
        for worker in workers:
            with suppress(OSError):  # it has ended already
                worker.begin.send(None)
        _follow(workers, jobs, observer)
        for number, worker in enumerate(workers, start=1):
            worker.process.join()
            if worker.process.exitcode:
                observer.note(f"process {number} ended early, see {worker.log}")


@contextmanager
def _running(work: Sequence[Work], done: Flags, variables: Mapping[str, str]) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        with environment(variables):
            for piece in work:
                workers.append(_start(piece, done))
        yield workers
    finally:
        _stop(workers)


def _start(work: Work, done: Flags) -> Worker:
    context = multiprocessing.get_context("spawn")
    events, sender = context.Pipe(duplex=False)
    receiver, begin = context.Pipe(duplex=False)
    process = context.Process(target=make_shared_runs, args=(work, done, sender, receiver), daemon=True)
    with _interrupts_ignored():  # inherited: Ctrl-C is for the parent, which then stops its processes
        process.start()
    sender.close()  # now the pipes end with the process
    receiver.close()
    return Worker(process, events, begin, work.log)


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
        worker.begin.close()


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


def make_shared_runs(work: Work, done: Flags, events: Connection, begin: Connection) -> None:
    """What a process does: all that is left of the work, until SIGTERM or the end of its parent.

    `done` has a flag for each job that all processes share, set when it is finished.
    """
    _redirect_output(work.log)
    signal.signal(signal.SIGTERM, _interrupt)
    if work.n_threads:
        torch.set_num_threads(work.n_threads)
    keep_freed_memory()
    jobs = [table.job() for table in work.jobs]
    load = DatasetLoader(partial(load_dataset, data_dir=work.data_dir))
    try:
        device = choose_device(work.device)
        _prepare(device, jobs, load)
        begin.recv()
        sender = EventSender(jobs, events, done)
        make_runs(jobs, load, device, work.notes, sender, skip_in_use=True, is_done=sender.is_done)
    except (KeyboardInterrupt, BrokenPipeError, EOFError):  # the last: its parent ended before it could begin
        return


def _prepare(device: torch.device, jobs: Sequence[Job], load: LoadData) -> None:
    """What takes long and is the same for all runs: read the data, and let CUDA load its libraries."""
    load(jobs[0].cell)
    if device.type == "cuda":
        matrix = torch.ones(8, 8, device=device)
        float((matrix @ matrix).sum())


class EventSender(Observer):
    """Sends what happens to the parent."""

    def __init__(self, jobs: Sequence[Job], events: Connection, done: Flags) -> None:
        self._indices = {job.folder: index for index, job in enumerate(jobs)}
        self._events, self._done = events, done

    def is_done(self, job: Job) -> bool:
        """Whether any of the processes has finished it."""
        return bool(self._done[self._indices[job.folder]])

    def run_started(self, job: Job) -> None:
        self._events.send(("run_started", self._indices[job.folder]))

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        self._events.send(("round_recorded", self._indices[job.folder], record))

    def run_finished(self, job: Job) -> None:
        index = self._indices[job.folder]
        self._done[index] = 1
        self._events.send(("run_finished", index))


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the saving
    raise KeyboardInterrupt


def _redirect_output(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
