"""The server of the live page, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosdefense.monitor.access import Address
from cosdefense.monitor.server import WatchServer


@contextmanager
def serving(folder: Path, token: str | None = None, *, port: int = 0, metrics: bool = False) -> Iterator[int]:
    """Yields the port."""
    server = WatchServer(folder, Address("127.0.0.1", port), token, metrics=metrics, interval=0.05)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + 300
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < end, "the server did not start in time"
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive()
