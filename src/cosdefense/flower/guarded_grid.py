"""A grid that pulls replies one by one, each independently, and never past the deadline."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from .reasons import Reason, Rejection, quote_error

MAX_PULLS_PER_SECOND = 20  # each pull is a request to the SuperLink
MAX_POLL_INTERVAL = 3.0  # seconds, for a few nodes; the same as in Flower
CLOCK_INTERVAL = 0.1  # seconds between two looks at the clock while waiting for replies
MAX_PULL_SECONDS = 10.0  # after this, the other replies are pulled in a new thread; sooner if the deadline is near
MAX_ATTEMPTS = 3  # at a reply that cannot be read: a network failure may pass, unreadable bytes stay unreadable


class GuardedGrid(Grid):
    """Wraps a grid so that no single reply can end the round or delay it past the deadline.

    In Flower's own `send_and_receive`, one unreadable reply ends the call for all nodes, and a slow one can hold it
    past its timeout. Replies are pulled one by one because a SuperLink forgets what it has delivered: if one of ten
    replies in a single pull cannot be read, the other nine are lost with it.
    """

    def __init__(self, inner: Grid, deadline: float | None = None) -> None:
        self._inner, self._deadline = inner, deadline
        self.rejected: list[Rejection] = []  # nodes without a reply in the last `send_and_receive`

    @property
    def run(self) -> Any:
        return self._inner.run

    def set_run(self, *arguments: Any, **named: Any) -> None:
        self._inner.set_run(*arguments, **named)

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self._inner.create_message(*arguments, **named)

    def get_node_ids(self) -> Iterable[int]:
        """In ascending order, so that a seeded sample of them is reproducible."""
        return sorted(self._inner.get_node_ids())

    def get_nodes(self) -> Any:
        return self._inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies that arrived in time and could be read."""
        limits = [seconds for seconds in (timeout, self._deadline) if seconds is not None]
        self.rejected = []
        waiting = self._push(messages)
        end = time.monotonic() + min(limits) if limits else math.inf  # counts from when all messages were sent
        replies: list[Message] = []
        failures: dict[str, list[Exception]] = {}
        puller = _Puller(self._inner, _get_pull_timeout(len(waiting), end - time.monotonic()), end)
        while waiting and time.monotonic() < end:
            puller.pull(waiting)
            for message_id, pulled in puller.get_results(end - time.monotonic()):
                if message_id not in waiting:
                    continue
                if isinstance(pulled, Exception):
                    failures.setdefault(message_id, []).append(pulled)
                elif pulled:
                    replies += pulled
                    del waiting[message_id]
                elif message_id in failures:  # it was delivered, could not be read, and is gone
                    failures[message_id].append(failures[message_id][0])
                if len(failures.get(message_id, [])) >= MAX_ATTEMPTS and message_id in waiting:
                    detail = quote_error(failures[message_id][0])
                    self.rejected.append(Rejection(waiting.pop(message_id), Reason.UNREADABLE, detail))
        puller.stop()
        self.rejected += [Rejection(node, Reason.LATE, "no reply before the deadline") for node in waiting.values()]
        return replies

    def _push(self, messages: Iterable[Message]) -> dict[str, int]:
        """Message id → node. One push per message: a message that cannot be sent does not affect the others."""
        sent: dict[str, int] = {}
        failure: Exception | None = None
        for message in messages:
            node = message.metadata.dst_node_id
            try:
                message_ids = list(self._inner.push_messages([message]))
            except Exception as error:
                failure, message_ids = error, []
                self.rejected.append(Rejection(node, Reason.UNSENT, quote_error(error)))
            else:
                if not message_ids or not message_ids[0]:
                    self.rejected.append(Rejection(node, Reason.UNSENT, "the transport did not accept the message"))
            sent.update({message_id: node for message_id in message_ids[:1] if message_id})
        if failure and not sent:
            raise failure  # the transport is gone: stop instead of skipping all remaining rounds
        return sent


def _get_pull_timeout(n_waiting: int, seconds: float) -> float:
    """How long the others wait for one pull: all of them must get their turn before the deadline."""
    return min(MAX_PULL_SECONDS, max(0.2, seconds / (2 * max(n_waiting, 1))))


def get_next_poll(now: float, start: float, end: float, n_waiting: int) -> float:
    """When to poll again: after a tenth of the time waited so far, and once more just before the end."""
    shortest = n_waiting / MAX_PULLS_PER_SECOND
    interval = max(shortest, min((now - start) / 10, MAX_POLL_INTERVAL))
    last = end - max(2 * shortest, 0.5)
    return last if now < last < now + interval else now + interval


PullResult = tuple[str, list[Message] | Exception]  # of a message id


class _Puller:
    """Pulls replies one at a time in a thread. If a pull hangs, a new thread pulls the other replies."""

    def __init__(self, grid: Grid, pull_timeout: float, end: float) -> None:
        self._grid, self._pull_timeout = grid, pull_timeout
        self._start, self._end = time.monotonic(), end
        self._results: queue.SimpleQueue[PullResult] = queue.SimpleQueue()
        self._hanging: set[str] = set()  # message ids of pulls that hang; their results count if they come in time
        self._thread: _PullThread | None = None
        self._next_poll = 0.0

    def pull(self, waiting: Collection[str]) -> None:
        """Start a thread, if none is working and the next poll is due."""
        if self._thread is not None and self._thread.is_alive():
            message_id, since = self._thread.current
            if not message_id or time.monotonic() - since <= self._pull_timeout:
                return
            self._hanging.add(message_id)
            self._thread.stopped = True
        elif time.monotonic() < self._next_poll:
            return
        message_ids = [message_id for message_id in waiting if message_id not in self._hanging]
        self._thread = _PullThread(self._grid, message_ids, self._results)
        self._next_poll = get_next_poll(time.monotonic(), self._start, self._end, len(message_ids))
        self._thread.start()

    def get_results(self, seconds: float) -> Iterator[PullResult]:
        """All results so far. Waits a moment for the first."""
        wait = max(0.0, min(seconds, CLOCK_INTERVAL))
        with suppress(queue.Empty):
            while True:
                message_id, pulled = self._results.get(timeout=wait)
                self._hanging.discard(message_id)
                yield message_id, pulled
                wait = 0.0

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.stopped = True


class _PullThread(threading.Thread):
    """A daemon: a pull that never returns must not keep the process alive."""

    def __init__(self, grid: Grid, message_ids: Sequence[str], results: queue.SimpleQueue[PullResult]) -> None:
        super().__init__(name="cosdefense-pull", daemon=True)
        self._grid, self._message_ids, self._results = grid, message_ids, results
        self.current: tuple[str, float] = ("", 0.0)  # the current pull and its start; one tuple, so reads are atomic
        self.stopped = False

    def run(self) -> None:
        for message_id in self._message_ids:
            if self.stopped:
                return
            self.current = (message_id, time.monotonic())
            result = self._pull(message_id)
            self.current = ("", 0.0)  # before the result is queued, or a finished pull could be taken for a hanging one
            self._results.put((message_id, result))

    def _pull(self, message_id: str) -> list[Message] | Exception:
        try:
            return list(self._grid.pull_messages([message_id]))
        except Exception as error:  # the bytes of one client may raise; the others must still be read
            return error
