"""Looks at a run again and again, and sends what has changed to every open page."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync

from ..runs.safe_text import log_failure
from .watched_run import WatchedRun

log = logging.getLogger("uvicorn.error")  # where the server logs

HEARTBEAT = 15  # seconds; a connection that is gone is noticed when something is sent
MAX_CHANGES = 100  # kept for pages that are slow; those that are slower get a snapshot
Result = TypeVar("Result")


class Broadcast:
    """One reader of the folder for any number of pages."""

    def __init__(self, run: WatchedRun, interval: float, is_stopping: Callable[[], bool]) -> None:
        self._run, self._interval, self._is_stopping = run, interval, is_stopping
        self._lock = anyio.Lock()  # the run is read in threads, by one at a time
        self._changed = anyio.Event()
        self._changes: deque[tuple[int, str]] = deque(maxlen=MAX_CHANGES)
        self.version = 0

    async def read(self, read: Callable[[WatchedRun], Result]) -> tuple[int, Result]:
        """Read the run while nothing changes. Returns the version, too."""
        async with self._lock:
            return self.version, await run_sync(read, self._run)

    async def follow(self) -> None:
        """Look at the folder until the server stops."""
        while not self._is_stopping():
            try:
                await self._look()
            except Exception as error:  # the pages that are open must not stop getting news
                log_failure(log, error, "the run could not be read")
            await anyio.sleep(self._interval)

    async def _look(self) -> None:
        async with self._lock:
            change = await run_sync(self._run.look)
            if change is None:
                return
            self.version += 1
            self._changes.append((self.version, format_event(change.kind, change.content)))
        self._changed.set()
        self._changed = anyio.Event()

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: first everything, then what is new. A page that reconnects begins with everything."""
        seen, content = await self.read(WatchedRun.snapshot)
        yield format_event("snapshot", content)
        idle = 0.0
        while not self._is_stopping():
            changed = self._changed
            news = [(version, text) for version, text in self._changes if version > seen]
            if news and news[0][0] > seen + 1:
                seen, content = await self.read(WatchedRun.snapshot)
                news = [(seen, format_event("snapshot", content))]
            for seen, text in news:  # noqa: B007 (the last one seen)
                yield text
            idle = 0.0 if news else idle
            if not news:
                with anyio.move_on_after(1):
                    await changed.wait()
                idle += 1
                if idle >= HEARTBEAT:
                    idle = 0.0
                    yield ": still here\n\n"


def format_event(kind: str, content: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(content, allow_nan=False, separators=(',', ':'))}\n\n"
