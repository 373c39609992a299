"""A grid that pulls every reply independently, several at a time, and ends at the deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from .pull_threads import Pull, PullLimits, PullThreads, SuperLinkLost, call_with_limit
from .reasons import Reason, Rejection, quote_error

CLOCK_INTERVAL = 0.1  # seconds between two looks at the clock while waiting for replies
MAX_ATTEMPTS = 3  # at a reply that cannot be read: a network failure may pass, unreadable bytes stay unreadable


class GuardedGrid(Grid):
    """Wraps a grid so that no single reply can end the round or delay it past the deadline and its grace.

    In Flower's own `send_and_receive`, one unreadable reply ends the call for all nodes, and a slow one can hold it
    past its timeout. Every reply is pulled by itself because a SuperLink forgets what it has delivered: if one of ten
    replies in a single pull cannot be read, the other nine are lost with it.

    A reply is late if it was not at the SuperLink at the deadline. All nodes without a reply are asked once more then,
    so that no reply is late because other replies were pulled before it.
    """

    def __init__(self, inner: Grid, deadline: float | None = None, limits: PullLimits | None = None) -> None:
        self._inner, self._deadline, self._limits = inner, deadline, limits or PullLimits()
        self._threads = PullThreads(inner, self._limits)
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
        return call_with_limit(lambda: sorted(self._inner.get_node_ids()), self._limits.silence)

    def get_nodes(self) -> Any:
        return call_with_limit(self._inner.get_nodes, self._limits.silence)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return call_with_limit(
            lambda: list(self._inner.push_messages(messages)), self._limits.silence, check=self.get_node_ids
        )

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies that arrived in time and could be read. Raises `SuperLinkLost` if there is no SuperLink."""
        limits = [seconds for seconds in (timeout, self._deadline) if seconds is not None]
        self.rejected = []
        waiting = self._push(messages)
        end = time.monotonic() + min(limits) if limits else math.inf  # counts from when all messages were sent
        collected = self._collect(waiting, end)
        self.rejected += collected.rejected
        self.rejected += [
            Rejection(node, Reason.LATE, "no reply before the deadline") for node in collected.waiting.values()
        ]
        if self.rejected:
            self.get_node_ids()  # raises if it is not the nodes that are missing, but the SuperLink
        return collected.replies

    def _collect(self, waiting: dict[str, int], end: float) -> _Replies:
        """Poll until all nodes have replied, or until the deadline, after which each is asked once more."""
        replies, threads, limits = _Replies(waiting, end), self._threads, self._limits
        start = next_poll = time.monotonic()
        threads.pull_seconds = get_pull_seconds(end - start, len(waiting), limits)
        while waiting and (now := time.monotonic()) < end:
            if threads.is_idle and now >= next_poll:
                threads.submit(waiting)
                next_poll = get_next_poll(now, start, len(waiting), limits)
            self._wait_for_pulls(replies, end)
        while replies.unasked and time.monotonic() < end + limits.grace:
            threads.submit(replies.unasked)
            self._wait_for_pulls(replies, end + limits.grace)
        threads.cancel()
        return replies

    def _wait_for_pulls(self, replies: _Replies, end: float) -> None:
        """For a moment, and not past the end."""
        moment = min(CLOCK_INTERVAL, self._threads.pull_seconds, end - time.monotonic())
        for pull in self._threads.wait(moment):
            replies.add(pull)
        if not self._threads.is_empty and time.monotonic() - self._threads.last_answer > self._limits.silence:
            self.get_node_ids()  # raises if there is no SuperLink; a client can make its own pull hang, but not this
            self._threads.last_answer = time.monotonic()

    def _push(self, messages: Iterable[Message]) -> dict[str, int]:
        """Message id → node. All at once, because every push digests the whole model; if that fails, one by one.

        So a message that cannot be sent does not affect the others.
        """
        messages = list(messages)
        sent: dict[str, int] = {}
        failure: Exception | None = None
        for message, pushed in zip(messages, self._push_together(messages), strict=True):
            node = message.metadata.dst_node_id
            if isinstance(pushed, Exception):
                failure = pushed
                self.rejected.append(Rejection(node, Reason.UNSENT, quote_error(pushed)))
            elif pushed:
                sent[pushed] = node
            else:
                self.rejected.append(Rejection(node, Reason.UNSENT, "the transport did not accept the message"))
        if failure and not sent:
            raise failure  # the transport is gone: stop instead of skipping all remaining rounds
        return sent

    def _push_together(self, messages: list[Message]) -> list[str | Exception | None]:
        """A message id, nothing or an error for each of them."""
        try:
            message_ids = list(self.push_messages(messages)) if messages else []
            if len(message_ids) == len(messages):
                return [*message_ids]
        except SuperLinkLost:
            raise
        except Exception as error:
            if len(messages) == 1:
                return [error]
        return [None] if len(messages) == 1 else [self._push_together([message])[0] for message in messages]


def get_next_poll(now: float, start: float, n_waiting: int, limits: PullLimits) -> float:
    """When to poll again: after a tenth of the time waited so far, within the limits of `PullLimits`."""
    return now + max(n_waiting / limits.pulls_per_second, min((now - start) / 10, limits.poll_interval))


def get_pull_seconds(seconds: float, n_waiting: int, limits: PullLimits) -> float:
    """When a pull counts as hanging: soon enough that all nodes get their turn, even if every pull hangs."""
    return min(limits.pull_seconds, max(CLOCK_INTERVAL, seconds * limits.n_threads / (4 * max(n_waiting, 1))))


@dataclass
class _Replies:
    """What was pulled in one round, and from which nodes a reply is missing."""

    waiting: dict[str, int]  # message id → node
    end: float
    replies: list[Message] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # message ids that were pulled after the deadline

    @property
    def unasked(self) -> dict[str, int]:
        return {message_id: node for message_id, node in self.waiting.items() if message_id not in self.asked}

    def add(self, pull: Pull) -> None:
        if pull.message_id not in self.waiting:
            return  # of a round before this one
        if pull.start >= self.end:
            self.asked.add(pull.message_id)
        failures = self.failures.setdefault(pull.message_id, [])
        if isinstance(pull.result, Exception):
            failures.append(pull.result)
        elif pull.result:
            self.replies += pull.result
            del self.waiting[pull.message_id]
        elif failures:  # it was delivered, could not be read, and is gone
            failures.append(failures[0])
        is_last = len(failures) >= MAX_ATTEMPTS or pull.message_id in self.asked
        if failures and is_last and pull.message_id in self.waiting:
            node = self.waiting.pop(pull.message_id)
            self.rejected.append(Rejection(node, Reason.UNREADABLE, quote_error(failures[0])))
