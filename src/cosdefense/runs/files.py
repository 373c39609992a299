"""How files of a run are written: as a whole, and readable by their owner only.

Records and checkpoints hold seeds, models and judgments about clients.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o666  # less what the umask takes away


def write_atomically(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replace a file as a whole. Readers see the old file or the new one, even after a power cut.

    For one writer at a time.
    """
    partial = path.with_name(f".{path.name}.partial")  # always the same name: a crash leaves at most one
    partial.unlink(missing_ok=True)  # its permissions may be others
    with open(partial, "xb", opener=open_with(mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def append_whole(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Append to a file. On a full disk nothing is appended, rather than a part."""
    with open(path, "ab", buffering=0, opener=open_with(mode)) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(size)
            raise


def sync_folder(path: Path) -> None:
    """Make the names of its files safe against a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_private_folder(path: Path) -> None:
    """A new folder is only its owner's. One that exists keeps its permissions, and so do the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def open_with(mode: int = PRIVATE) -> Callable[[str, int], int]:
    """An opener for `open`: a file that it creates has these permissions."""
    return lambda path, flags: os.open(path, flags, mode)
