"""Make many runs on a Ray cluster, one task each. Results are uploaded to the driver: no shared file system is needed.

When a worker dies, its run resumes from the last checkpoint on another one. A run that fails with an error is reported
once the others are finished.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from ...catalog.options import ConfigError
from ...core.experiment_folder import package_of
from ...data import Dataset
from ..data_section import DatasetLoader
from ..execution import Execution
from ..experiment import Experiment
from ..observer import Job, Observer
from ..run_folder import RunFolder
from .remote_run import RemoteRun
from .transport import Inbox
from .worker import RunRequest, make_remote_run

LoadData = Callable[[Experiment], Dataset]

LOCAL = "local"  # in place of an address: a Ray of our own, for as long as the command runs
RETRIES = 3  # after a worker died, as long as no new checkpoint comes
CHECKPOINT_SECONDS = 20.0  # more than on a local disk: that of a ResNet-18 is 45 MB to send
UPLOAD_SECONDS = 1.0
STOP_SECONDS = 60.0  # for interrupted runs to end their round


class RayUnavailable(RuntimeError):
    """The cluster cannot be used."""


class RunsFailed(RuntimeError):
    """Some runs could not be finished."""


def run_on_ray(
    jobs: Sequence[Job], execution: Execution, load: LoadData, notes: Mapping[str, Any],
    observer: Observer,
) -> None:  # fmt: skip
    """Finish every job on the cluster. Ctrl-C and SIGTERM save every run that has started."""
    sources = {job.cell.source for job in jobs if job.cell.source and any(job.cell.source.glob("*.py"))}
    packages = {source: package_of(source) for source in sources}
    with ExitStack() as stack:
        stack.enter_context(_connect(str(execution.ray), packages))
        gpus = _gpus(execution)
        for job in jobs:
            stack.enter_context(RunFolder(job.folder).lock())
        signals = stack.enter_context(_deferred_signals())
        dispatcher = Dispatcher(load, gpus, observer)
        for job in jobs:
            package = packages.get(job.cell.source) if job.cell.source else None
            cell = replace(job.cell, data=replace(job.cell.data, loaded=None))  # the dataset is sent once
            request = RunRequest(
                cell, "cuda" if gpus else "cpu", notes, CHECKPOINT_SECONDS, UPLOAD_SECONDS,
                package=package,
            )  # fmt: skip
            dispatcher.submit(RemoteRun(job, request, observer))
        while dispatcher.busy and not signals():
            dispatcher.poll()
        if dispatcher.busy:
            dispatcher.stop(lambda: len(signals()) > 1)
            raise KeyboardInterrupt
    if dispatcher.failures:
        failures = "; ".join(dispatcher.failures)
        raise RunsFailed(f"{len(dispatcher.failures)} of {len(jobs)} runs failed. {failures}")


class Dispatcher:
    """Submits runs to the cluster, and stores what they upload."""

    def __init__(self, load: LoadData, gpus: float, observer: Observer) -> None:
        self._ray = ray = import_module("ray")
        here = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )  # on the driver's node: what ends the inbox ends the driver too
        self._inbox = ray.remote(Inbox).options(num_cpus=0, scheduling_strategy=here).remote()
        # Retries are ours: Ray's own would begin with the files of the first attempt.
        self._task = ray.remote(make_remote_run).options(num_cpus=1, num_gpus=gpus, max_retries=0)
        self._dataset = DatasetLoader(lambda cell: ray.put(load(cell)))  # once for all runs, however many nodes
        self._senders = count()
        self._runs: dict[int, RemoteRun] = {}  # that are in progress, by sender
        self._tasks: dict[Any, int] = {}  # and their senders
        self._observer = observer
        self.failures: list[str] = []

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def submit(self, run: RemoteRun) -> None:
        """Start a task with a new sender number, so that a worker wrongly taken for dead cannot interfere."""
        sender = next(self._senders)
        dataset = self._dataset(run.job.cell)
        self._tasks[self._task.remote(run.start(), dataset, self._inbox, sender)] = sender
        self._runs[sender] = run

    def poll(self) -> None:
        """Store what has arrived, and see which tasks have ended."""
        done, _ = self._ray.wait(list(self._tasks), timeout=0.5)
        self._store()  # after the wait, so that the last upload of a task that has ended is here
        for task in done:
            run = self._runs.pop(self._tasks.pop(task))
            try:
                self._ray.get(task)
                self._observer.run_finished(run.job)
            except _ray_errors("RayTaskError") as error:
                cause = getattr(error, "cause", error)
                self.failures.append(run.fail(f"{type(cause).__name__}: {cause}", _without_colors(str(error))))
            except _ray_errors("RayError") as error:
                self._retry(run, str(error).partition("\n")[0])

    def stop(self, impatient: Callable[[], bool]) -> None:
        """Let every run that has started save and upload its state; the others have nothing to lose."""
        self._ray.get(self._inbox.stop.remote())
        deadline = time.monotonic() + STOP_SECONDS
        waiting = {task for task, sender in self._tasks.items() if self._runs[sender].reported}
        for task in self._tasks.keys() - waiting:
            self._ray.cancel(task)
        while waiting and time.monotonic() < deadline and not impatient():
            done, _ = self._ray.wait(list(waiting), timeout=0.5)
            waiting.difference_update(done)
        self._store()

    def _store(self) -> None:
        for sender, upload in self._ray.get(self._inbox.take.remote()):
            if sender in self._runs:
                self._runs[sender].store(upload)

    def _retry(self, run: RemoteRun, reason: str) -> None:
        run.crashes += 1
        if run.crashes > RETRIES:
            self.failures.append(run.fail(f"its worker died {run.crashes} times in a row", reason))
            return
        self._observer.note(f"{run.job.label}: its worker died, resuming from the last checkpoint ({reason})")
        self.submit(run)


@contextmanager
def _connect(address: str, packages: Mapping[Path, str]) -> Iterator[None]:
    """Join a cluster. Python files beside the experiments are sent along: they may define parts."""
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    environment: dict[str, str] = {}
    if address == LOCAL:  # only this process uses it
        settings |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        environment |= {"RAY_USAGE_STATS_ENABLED": "0"}
        environment |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # or it listens to the network on Linux
        if "RAY_AUTH_MODE" not in os.environ:  # Ray would write a key into the user's home
            environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    else:
        _check_reachable(address)
    with TemporaryDirectory(prefix="cosdefense-") as staged, _environment_defaults(environment):  # Ray reads it early
        ray, handler = import_module("ray"), signal.getsignal(signal.SIGTERM)
        names = ("AuthenticationError", "RaySystemError", "RayActorError")
        unusable: tuple[type[Exception], ...] = (ConnectionError, *_ray_errors(*names))
        for source, package in packages.items():
            (Path(staged) / package).mkdir(exist_ok=True)
            for path in source.glob("*.py"):
                shutil.copy(path, Path(staged) / package)
            settings["runtime_env"] = {"working_dir": staged}
            if address == LOCAL:  # Ray hands it to a shell as it is: a path with a space would start no worker
                settings["runtime_env"]["py_executable"] = shlex.quote(sys.executable)
        try:
            ray.init(address, **settings)
            signal.signal(signal.SIGTERM, handler)  # Ray has replaced it
            yield
        except unusable as error:
            raise RayUnavailable(f"the Ray cluster at {address} cannot be used: {error}") from error
        finally:
            ray.shutdown()


@contextmanager
def _environment_defaults(defaults: Mapping[str, str]) -> Iterator[None]:
    """Inside, these variables are set unless the user has set them."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _check_reachable(address: str) -> None:
    """Ray itself would wait for minutes where nothing answers."""
    if address == "auto":
        return
    try:
        split = urlsplit(address if "://" in address else f"//{address}")
        host, port = split.hostname, split.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(f"--ray takes local, auto or HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        raise RayUnavailable(f"no Ray cluster answers at {address}: {error}") from error


@contextmanager
def _deferred_signals() -> Iterator[Callable[[], Sequence[int]]]:
    """Ctrl-C and SIGTERM wait until they are asked for: an upload must not be stored by half."""
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as a shell starts background jobs
            signal.signal(number, lambda number, _: received.append(number))
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _gpus(execution: Execution) -> float:
    """How much of a GPU each run asks for."""
    n = import_module("ray").cluster_resources().get("GPU", 0)
    if execution.device == "cuda" and not n:
        raise ConfigError("device cuda was asked for, but the Ray cluster has no GPU")
    return execution.gpu_share if n and execution.device != "cpu" else 0.0


def _without_colors(text: str) -> str:
    """Ray colors its error messages."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _ray_errors(*names: str) -> tuple[type[Exception], ...]:
    errors = import_module("ray.exceptions")
    return tuple(getattr(errors, name) for name in names)
