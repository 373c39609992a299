"""Run many cells on a Ray cluster, one task each. Results come home, so that nodes need share no file system with us.

A worker that dies costs the rounds since its last checkpoint: the run goes on from there with another one. A run that
fails by itself is reported once the others are finished.
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
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from rich.progress import Progress

from ...catalog.options import ConfigError
from ...cli import console
from ...data.datasets import Dataset
from ..execution import Execution
from ..many_runs import Job
from ..run_folder import RunFolder
from .remote_run import RemoteRun
from .transport import Inbox
from .worker import RunRequest, work

LOCAL = "local"  # in place of an address: a Ray of our own, for as long as the command runs
RETRIES = 3  # after the death of a worker, as long as no new checkpoint comes
CHECKPOINT_SECONDS = 20.0  # more than on a disk of one's own: that of a ResNet-18 is 45 MB to send
PARCEL_SECONDS = 1.0
FAREWELL_SECONDS = 60.0  # for interrupted runs to end the round they are in


class RayTrouble(RuntimeError):
    """The cluster cannot be used."""


class RunsFailed(RuntimeError):
    """Some runs could not be finished."""


def run_on_ray(
    jobs: Sequence[Job], place: Execution, data: Callable[[str], Dataset], notes: Mapping[str, Any], bars: Progress
) -> None:
    """Finish every job on the cluster. Ctrl-C and SIGTERM save every run that is going on."""
    with ExitStack() as stack:
        stack.enter_context(_connected(str(place.ray), place.parts))
        gpus = _gpus(place)
        for job in jobs:
            stack.enter_context(RunFolder(job.folder).lock())
        interrupted = stack.enter_context(_signals_heard())
        dispatcher = Dispatcher(data, gpus, len(jobs), bars)
        for job in jobs:
            order = RunRequest(job.cell, job.play, "cuda" if gpus else "cpu", notes, CHECKPOINT_SECONDS, PARCEL_SECONDS)
            show = console.RunProgress(bars, job.label, job.cell.training.rounds)
            dispatcher.send(RemoteRun(job, order, show))
        while dispatcher.busy and not interrupted():
            dispatcher.look()
        if dispatcher.busy:
            dispatcher.stop(lambda: len(interrupted()) > 1)
            raise KeyboardInterrupt
    if dispatcher.failures:
        failures = "; ".join(dispatcher.failures)
        raise RunsFailed(f"{len(dispatcher.failures)} of {len(jobs)} runs failed. {failures}")


class Dispatcher:
    """Sends runs out, and stores what they send home."""

    def __init__(self, data: Callable[[str], Dataset], gpus: float, n: int, bars: Progress) -> None:
        self._ray = ray = import_module("ray")
        here = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )  # what could take the mailbox away takes us too
        self._mailbox = ray.remote(Inbox).options(num_cpus=0, scheduling_strategy=here).remote()
        # Retries are ours: Ray's own would begin with the files of the first time.
        self._task = ray.remote(work).options(num_cpus=1, num_gpus=gpus, max_retries=0)
        self._dataset = cache(lambda name: ray.put(data(name)))  # once for all runs, however many nodes
        self._senders = count()
        self._errands: dict[int, RemoteRun] = {}  # that are on their way, by sender
        self._tasks: dict[Any, int] = {}  # and their senders
        self._bars, self._overall = bars, bars.add_task("runs", total=n, note="")
        self.failures: list[str] = []

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def send(self, errand: RemoteRun) -> None:
        """A task of its own; a sender of its own too, so that a worker taken for dead cannot interfere."""
        sender = next(self._senders)
        dataset = self._dataset(errand.job.cell.data.dataset)
        self._tasks[self._task.remote(errand.begin(), dataset, self._mailbox, sender)] = sender
        self._errands[sender] = errand

    def look(self) -> None:
        """Store what came, see who is done."""
        done, _ = self._ray.wait(list(self._tasks), timeout=0.5)
        self._collect()  # after that, so that what a run sent last is here
        for task in done:
            errand = self._errands.pop(self._tasks.pop(task))
            try:
                self._ray.get(task)
                self._bars.advance(self._overall)
            except _ray_errors("RayTaskError") as error:
                cause = getattr(error, "cause", error)
                self.failures.append(errand.fail(f"{type(cause).__name__}: {cause}", _plain(str(error))))
            except _ray_errors("RayError") as error:
                self._after_death(errand, str(error).partition("\n")[0])

    def stop(self, impatient: Callable[[], bool]) -> None:
        """Every run that is going on saves where it is and sends it; the others have nothing to lose."""
        self._ray.get(self._mailbox.stop.remote())
        deadline = time.monotonic() + FAREWELL_SECONDS
        waiting = {task for task, sender in self._tasks.items() if self._errands[sender].heard}
        for task in self._tasks.keys() - waiting:
            self._ray.cancel(task)
        while waiting and time.monotonic() < deadline and not impatient():
            done, _ = self._ray.wait(list(waiting), timeout=0.5)
            waiting.difference_update(done)
        self._collect()

    def _collect(self) -> None:
        for sender, parcel in self._ray.get(self._mailbox.collect.remote()):
            if sender in self._errands:
                self._errands[sender].store(parcel)

    def _after_death(self, errand: RemoteRun, reason: str) -> None:
        errand.deaths += 1
        if errand.deaths > RETRIES:
            self.failures.append(errand.fail(f"its worker died {errand.deaths} times in a row", reason))
            return
        console.note(f"{errand.job.label}: its worker died, going on from the last checkpoint ({reason})")
        self.send(errand)


@contextmanager
def _connected(address: str, parts: Path | None) -> Iterator[None]:
    """In a cluster. Python files beside the experiment travel along: they may define its parts."""
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:  # nobody else needs to see or hear of it
        settings |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # or it listens to the network on Linux
        if "RAY_AUTH_MODE" not in os.environ:  # Ray would write a key into the user's home
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    else:
        _knock(address)
    ray, handler = import_module("ray"), signal.getsignal(signal.SIGTERM)
    names = ("AuthenticationError", "RaySystemError", "RayActorError")
    unusable: tuple[type[Exception], ...] = (ConnectionError, *_ray_errors(*names))
    with TemporaryDirectory(prefix="cosdefense-") as staged:
        for path in sorted(parts.glob("*.py")) if parts else ():
            shutil.copy(path, staged)
            settings["runtime_env"] = {"working_dir": staged}
            if address == LOCAL:  # Ray hands it to a shell as it is: a path with a space would start no worker
                settings["runtime_env"]["py_executable"] = shlex.quote(sys.executable)
        try:
            ray.init(address, **settings)
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own there
            yield
        except unusable as error:
            raise RayTrouble(f"the Ray cluster at {address} does not work for us: {error}") from error
        finally:
            ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself waits for minutes where nobody is."""
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
        raise RayTrouble(f"no Ray cluster answers at {address}: {error}") from error


@contextmanager
def _signals_heard() -> Iterator[Callable[[], Sequence[int]]]:
    """Ctrl-C and SIGTERM wait until they are asked for: what comes home must not be stored by half."""
    heard: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # a shell's background jobs are deaf to Ctrl-C
            signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield lambda: heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _gpus(place: Execution) -> float:
    """How much of a GPU each run asks for."""
    n = import_module("ray").cluster_resources().get("GPU", 0)
    if place.device == "cuda" and not n:
        raise ConfigError("device cuda was asked for, but the Ray cluster has no GPU")
    return place.gpu_share if n and place.device != "cpu" else 0.0


def _plain(text: str) -> str:
    """Without the colors that Ray puts in."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _ray_errors(*names: str) -> tuple[type[Exception], ...]:
    errors = import_module("ray.exceptions")
    return tuple(getattr(errors, name) for name in names)
