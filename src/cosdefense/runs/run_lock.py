"""The lock of a run's folder: one writer at a time, and the file says which."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from .files import open_with

LOCK = "lock"  # its name in the folder


class RunInUse(RuntimeError):
    """Another process is writing to this run."""


@dataclass(frozen=True)
class RunLock:
    """A lock that this process holds."""

    path: Path
    file: TextIO

    def check(self) -> None:
        """Raise `RunInUse` if the lock file was removed or replaced: another process may be writing by now."""
        try:
            is_same = os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise RunInUse(
                f"{self.path} was removed or replaced while this process held it: nothing more is written, "
                "because another process may be writing"
            )


@contextmanager
def hold_lock(path: Path) -> Iterator[RunLock]:
    """Make this process the only writer. The lock ends with the process, however that ends."""
    # Not "w", which would remove the name of the holder. Private: whoever can open the file can hold the lock.
    with open(path, "a+", encoding="utf-8", opener=open_with()) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunInUse(f"{path.parent} is being written by {_read_holder(file)}") from error
        lock = RunLock(path, file)
        lock.check()  # the last holder may have removed the folder since the file was opened
        _write(file, json.dumps(_describe_this_process()))
        try:
            yield lock
        finally:
            _write(file, "")


def seems_held(path: Path) -> bool:
    """Whether a process holds this lock, as far as its file says.

    To try the lock would be surer, but could disturb a process that wants it at the same moment.
    """
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        is_local, pid = holder["host"] == socket.gethostname(), int(holder["pid"])
    except (OSError, ValueError, KeyError, TypeError):  # absent or empty: nobody holds it
        return False
    return not is_local or Path(f"/proc/{pid}").exists() or not Path("/proc/self").exists()


def _describe_this_process() -> dict[str, str | int]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}


def _read_holder(file: TextIO) -> str:
    try:
        file.seek(0)
        holder = json.loads(file.read(1000))
        pid, host, since = int(holder["pid"]), str(holder["host"]), str(holder["since"])
    except (ValueError, KeyError, TypeError):  # it has the lock, and has not yet written its name
        return "another process"
    return f"process {pid} on {host} since {since}; wait until it ends, or stop it"


def _write(file: TextIO, text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()
