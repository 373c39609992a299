"""Pulls replies in a bounded number of threads. A pull that hangs occupies its own thread and no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

THREAD_NAME = "cosdefense-pull"
SIGNAL_INTERVAL = 0.1  # seconds; Flower ends a ServerApp by a signal, which has to wait while a call blocks
T = TypeVar("T")


class SuperLinkLost(ConnectionError):
    """The SuperLink does not answer: the run ends, because a server without nodes must not go on writing."""


@dataclass(frozen=True)
class PullLimits:
    """How replies are pulled. All but `n_threads` and `pulls_per_second` are in seconds."""

    n_threads: int = 16  # pulls at the same time, not counting those that hang
    pulls_per_second: float = 100.0  # of nodes without a reply; each pull is a request to the SuperLink
    poll_interval: float = 3.0  # between two polls, at most, if the limit above allows it; the same as in Flower
    pull_seconds: float = 10.0  # a pull that takes longer hangs: another thread takes its place
    grace: float = 10.0  # after the deadline, to pull what arrived before it
    silence: float = 120.0  # without any answer of the SuperLink, then the run ends

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")


@dataclass(frozen=True)
class Pull:
    """A pull that has ended."""

    message_id: str
    start: float
    result: list[Message] | Exception


class PullThreads:
    """Threads that end when there is nothing left to pull. At most one pull per node is under way.

    A client can make a pull hang: it announces a reply and never uploads its arrays. Its thread stays occupied, also
    in later rounds, so that there are never more threads than the limit and one for each such node.
    """

    def __init__(self, grid: Grid, limits: PullLimits) -> None:
        self._grid, self._limits = grid, limits
        self._todo: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[int, Pull]] = queue.SimpleQueue()
        self._nodes: set[int] = set()  # with a pull that is queued or under way
        self._threads: list[_PullThread] = []
        self.pull_seconds = limits.pull_seconds  # shorter, if the deadline is
        self.last_answer = time.monotonic()  # when a pull last ended

    @property
    def is_idle(self) -> bool:
        """Whether all pulls have ended, except those that hang."""
        return len(self._nodes) <= sum(thread.hangs for thread in self._threads)

    @property
    def is_empty(self) -> bool:
        """Whether all pulls have ended."""
        return not self._nodes

    def submit(self, messages: Mapping[str, int]) -> None:
        """Pull the replies to these messages (id → node), except of nodes whose last pull has not ended."""
        if self.is_empty:
            self.last_answer = time.monotonic()
        for message_id, node in messages.items():
            if node not in self._nodes:
                self._nodes.add(node)
                self._todo.put((node, message_id))
        self._start_threads()

    def wait(self, seconds: float) -> Iterator[Pull]:
        """The pulls that end within this time, or until all have ended."""
        self._start_threads()
        end = time.monotonic() + seconds
        with suppress(queue.Empty):
            while True:
                node, pull = self._ended.get(timeout=max(0.0, end - time.monotonic()))
                self._nodes.discard(node)
                self.last_answer = time.monotonic()
                yield pull
                if self.is_idle:
                    return

    def cancel(self) -> None:
        """Forget the pulls that have not begun."""
        with suppress(queue.Empty):
            while True:
                self._nodes.discard(self._todo.get_nowait()[0])

    def _start_threads(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for thread in self._threads:
            thread.hangs |= thread.since < time.monotonic() - self.pull_seconds
        n_working = sum(not thread.hangs for thread in self._threads)
        for _ in range(min(self._todo.qsize(), self._limits.n_threads - n_working)):
            self._threads.append(_PullThread(self._grid, self._todo, self._ended))
            self._threads[-1].start()


class _PullThread(threading.Thread):
    """A daemon: a pull that never returns must not keep the process alive."""

    def __init__(
        self, grid: Grid, todo: queue.SimpleQueue[tuple[int, str]], ended: queue.SimpleQueue[tuple[int, Pull]]
    ) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self._grid, self._todo, self._ended = grid, todo, ended
        self.since = float("inf")  # when the current pull began
        self.hangs = False  # another thread has taken its place

    def run(self) -> None:
        with suppress(queue.Empty):
            while not self.hangs:
                node, message_id = self._todo.get_nowait()
                self.since = start = time.monotonic()
                result = self._pull(message_id)
                self.since = float("inf")
                self._ended.put((node, Pull(message_id, start, result)))

    def _pull(self, message_id: str) -> list[Message] | Exception:
        try:
            return list(self._grid.pull_messages([message_id]))
        except Exception as error:  # the bytes of one client may raise; the others must still be read
            return error


def call_with_limit(function: Callable[[], T], seconds: float, check: Callable[[], object] | None = None) -> T:
    """The result of a request to the SuperLink. Flower repeats failed requests forever, so it may never come.

    A request that may take longer, because a model is sent, has a `check` that raises if there is no SuperLink.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            results.put((function(), None))
        except BaseException as error:  # raised again in the thread that waits
            results.put((None, error))

    threading.Thread(target=call, name=THREAD_NAME, daemon=True).start()
    end = time.monotonic() + seconds
    while True:
        try:
            result, error = results.get(timeout=SIGNAL_INTERVAL)
            break
        except queue.Empty:
            if time.monotonic() < end:
                continue
            if check is None:
                raise SuperLinkLost(f"the SuperLink has not answered a request for {seconds:g} seconds") from None
            check()
            end = time.monotonic() + seconds
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
