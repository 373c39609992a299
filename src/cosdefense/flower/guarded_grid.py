"""A grid that survives its messages: replies are pulled one by one, each in isolation, and never past the deadline."""

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

from .guard import Lost, quoted
from .reasons import Reason

PULLS_PER_SECOND = 20  # at most: each is a request to the SuperLink
SLOWEST = 3.0  # seconds between two polls of a few nodes, as in Flower
WAKE = 0.1  # seconds after which the wait for replies looks at the clock
STUCK_SECONDS = 10.0  # a single pull that takes longer is left alone with its thread; sooner if the deadline is near
ATTEMPTS = 3  # at a reply that cannot be read: the network may have failed once, the client's bytes always will


class GuardedGrid(Grid):
    """Does what the grid inside does, and what Flower's own `send_and_receive` does not.

    There, one reply that cannot be read ends the call for all of them, and a slow one holds it past its timeout.
    One pull for all would be cheaper, but a SuperLink forgets what it has delivered: if the last of ten replies cannot
    be read, the nine before it are gone with it.
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
        self.refused = []
        waiting = self._push(messages)
        end = time.monotonic() + min(limits) if limits else math.inf  # from when everybody has been asked
        replies: list[Message] = []
        failures: dict[str, list[Exception]] = {}
        pulls = _Pulls(self._inner, _patience(len(waiting), end - time.monotonic()), end)
        while waiting and time.monotonic() < end:
            pulls.keep_going(waiting)
            for identifier, pulled in pulls.finished(end - time.monotonic()):
                if identifier not in waiting:
                    continue
                if isinstance(pulled, Exception):
                    failures.setdefault(identifier, []).append(pulled)
                elif pulled:
                    replies += pulled
                    del waiting[identifier]
                elif identifier in failures:  # it was delivered, could not be read, and is gone
                    failures[identifier].append(failures[identifier][0])
                if len(failures.get(identifier, [])) >= ATTEMPTS and identifier in waiting:
                    self.refused.append((waiting.pop(identifier), Reason.BROKEN, quoted(failures[identifier][0])))
        pulls.stop()
        self.refused += [(node, Reason.LATE, "no reply before the deadline") for node in waiting.values()]
        return replies

    def _push(self, messages: Iterable[Message]) -> dict[str, int]:
        """Which node each message went to. One by one: a message that cannot be sent costs itself."""
        sent: dict[str, int] = {}
        failure: Exception | None = None
        for message in messages:
            node = message.metadata.dst_node_id
            try:
                identifiers = list(self._inner.push_messages([message]))
            except Exception as error:
                failure, identifiers = error, []
                self.refused.append((node, Reason.UNSENT, quoted(error)))
            else:
                if not identifiers or not identifiers[0]:
                    self.refused.append((node, Reason.UNSENT, "the transport did not take the message"))
            sent.update({identifier: node for identifier in identifiers[:1] if identifier})
        if failure and not sent:
            raise failure  # the transport is gone: better to stop than to skip all rounds that are left
        return sent


def _patience(n_waiting: int, seconds: float) -> float:
    """How long one pull may take before the others go on without it: they must all get their turn."""
    return min(STUCK_SECONDS, max(0.2, seconds / (2 * max(n_waiting, 1))))


def next_poll(now: float, began: float, end: float, n_waiting: int) -> float:
    """When to ask again: at most a tenth later than was waited already, and once more just before the end."""
    at_once = n_waiting / PULLS_PER_SECOND
    pause = max(at_once, min((now - began) / 10, SLOWEST))
    last = end - max(2 * at_once, 0.5)
    return last if now < last < now + pause else now + pause


Pulled = tuple[str, list[Message] | Exception]


class _Pulls:
    """Pulls replies one at a time in a thread; if one hangs, the others go on in another thread."""

    def __init__(self, grid: Grid, patience: float, end: float) -> None:
        self._grid, self._patience = grid, patience
        self._began, self._end = time.monotonic(), end
        self._results: queue.SimpleQueue[Pulled] = queue.SimpleQueue()
        self._stuck: set[str] = set()  # still being pulled; what comes of it is taken if it comes in time
        self._thread: _Thread | None = None
        self._next = 0.0  # when to ask again

    def keep_going(self, waiting: Collection[str]) -> None:
        """Have a thread at work, unless it is too early to ask again."""
        if self._thread is not None and self._thread.is_alive():
            identifier, since = self._thread.busy
            if not identifier or time.monotonic() - since <= self._patience:
                return
            self._stuck.add(identifier)
            self._thread.stopped = True
        elif time.monotonic() < self._next:
            return
        asked = [identifier for identifier in waiting if identifier not in self._stuck]
        self._thread = _Thread(self._grid, asked, self._results)
        self._next = next_poll(time.monotonic(), self._began, self._end, len(asked))
        self._thread.start()

    def finished(self, patience: float) -> Iterator[Pulled]:
        """What has arrived; waits a little for the first."""
        wait = max(0.0, min(patience, WAKE))
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
        super().__init__(name="cosdefense-pull", daemon=True)
        self._grid, self._identifiers, self._results = grid, identifiers, results
        self.busy: tuple[str, float] = ("", 0.0)  # what is being pulled, and since when; one value, read as a whole
        self.stopped = False

    def run(self) -> None:
        for identifier in self._identifiers:
            if self.stopped:
                return
            self.busy = (identifier, time.monotonic())
            result = self._pull(identifier)
            self.busy = ("", 0.0)  # before the result is known, or a finished pull might be taken for a stuck one
            self._results.put((identifier, result))

    def _pull(self, identifier: str) -> list[Message] | Exception:
        try:
            return list(self._grid.pull_messages([identifier]))
        except Exception as error:  # the bytes of one client may break it; the others' must still be read
            return error
