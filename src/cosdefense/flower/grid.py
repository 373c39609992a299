"""A grid that survives its messages: replies are pulled one by one, each in isolation, and never past the deadline."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from .guard import Lost
from .reasons import Reason

log = logging.getLogger("flwr")

POLL_SECONDS = 0.5
STUCK_SECONDS = 10.0  # a single pull that takes longer is left alone with its thread


class GuardedGrid(Grid):
    """Does what the grid inside does, and what Flower's own `send_and_receive` does not.

    There, one reply that cannot be read ends the call for all of them, and a slow one holds it past its timeout.
    """

    def __init__(self, inner: Grid, deadline: float | None = None) -> None:
        self._inner, self._deadline = inner, deadline
        self.refused: list[Lost] = []  # of the last call: nodes whose reply never arrived, and why

    @property
    def run(self) -> Any:
        return self._inner.run

    def set_run(self, *arguments: Any, **named: Any) -> None:
        self._inner.set_run(*arguments, **named)

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self._inner.create_message(*arguments, **named)

    def get_node_ids(self) -> Iterable[int]:
        """In ascending order, so that a seeded choice among them is the same every time."""
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
        end = time.monotonic() + min(limits) if limits else None
        asked = {message.metadata.dst_node_id: message for message in messages}
        self.refused = []
        waiting = self._push(list(asked.values()))
        replies: list[Message] = []
        pulls = _Pulls(self._inner)
        while waiting and (end is None or time.monotonic() < end):
            pulls.keep_going(waiting)
            for identifier, pulled in pulls.finished(POLL_SECONDS if end is None else end - time.monotonic()):
                if identifier not in waiting or not pulled:
                    continue
                node = waiting.pop(identifier)
                if isinstance(pulled, Exception):
                    self.refused.append((node, Reason.BROKEN, f"{type(pulled).__name__}: {pulled!s:.120}"))
                else:
                    replies += pulled
        pulls.stop()
        self.refused += [(node, Reason.LATE, "no reply before the deadline") for node in waiting.values()]
        return replies

    def _push(self, messages: list[Message]) -> dict[str, int]:
        """Which node each message went to. One by one: a message that cannot be sent costs itself."""
        sent = {}
        for message in messages:
            node = message.metadata.dst_node_id
            identifiers = list(self._inner.push_messages([message]))
            if identifiers and identifiers[0]:
                sent[identifiers[0]] = node
            else:
                self.refused.append((node, Reason.BROKEN, "the message could not be sent"))
        return sent


Pulled = tuple[str, list[Message] | Exception]


class _Pulls:
    """Pulls replies one at a time in a thread; if one hangs, the others go on in another thread."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._results: queue.SimpleQueue[Pulled] = queue.SimpleQueue()
        self._stuck: set[str] = set()  # still being pulled; what comes of it is taken if it comes in time
        self._thread: _Thread | None = None
        self._next = 0.0  # when to ask again

    def keep_going(self, waiting: Collection[str]) -> None:
        """Have a thread at work, unless it is too early to ask again."""
        if self._thread is not None and self._thread.is_alive():
            if time.monotonic() - self._thread.since > STUCK_SECONDS:
                self._stuck.add(self._thread.current)
                self._thread.stopped = True
            else:
                return
        elif time.monotonic() < self._next:
            return
        asked = [identifier for identifier in waiting if identifier not in self._stuck]
        self._thread = _Thread(self._grid, asked, self._results)
        self._next = time.monotonic() + POLL_SECONDS
        self._thread.start()

    def finished(self, patience: float) -> Iterator[Pulled]:
        """What has arrived; waits a little for the first."""
        wait = max(0.0, min(patience, POLL_SECONDS / 5))
        with suppress(queue.Empty):
            while True:
                identifier, pulled = self._results.get(timeout=wait)
                self._stuck.discard(identifier)
                yield identifier, pulled
                wait = 0.0

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.stopped = True


class _Thread(threading.Thread):
    """A daemon: a pull that never returns must not keep the process alive."""

    def __init__(self, grid: Grid, identifiers: Sequence[str], results: queue.SimpleQueue[Pulled]) -> None:
        super().__init__(daemon=True)
        self._grid, self._identifiers, self._results = grid, identifiers, results
        self.current, self.since, self.stopped = "", time.monotonic(), False

    def run(self) -> None:
        for identifier in self._identifiers:
            if self.stopped:
                return
            self.current, self.since = identifier, time.monotonic()
            try:
                self._results.put((identifier, list(self._grid.pull_messages([identifier]))))
            except Exception as error:  # the bytes of one client may break it; the others' must still be read
                self._results.put((identifier, error))
