"""A run's folder: records line by line, a checkpoint never ahead of them, one writer at a time.

Records are synced before each checkpoint replaces the last one. After a crash, lines the checkpoint
does not know of are dropped, and their rounds run again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..simulation.loop import Snapshot
from .checkpoint import load_snapshot, save_snapshot, write_atomically
from .metrics import summarize
from .records import NotARun, RoundRecord, complete_lines, read_run


class ResumedElsewhere(RuntimeWarning):
    """A run goes on with other versions or on another device than it began: its bits may differ."""


class RunInUse(RuntimeError):
    """Another process is writing to this run."""


def is_finished(folder: Path) -> bool:
    """Whether this run has nothing left to do."""
    try:
        return read_run(folder).summary is not None
    except NotARun:
        return False


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Two processes must not write one run. The lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunInUse(f"{folder} is being written by another process") from error
        yield


class Journal:
    """Writes one run, going on where its folder stopped: `snapshot` is None at the very beginning."""

    def __init__(
        self, folder: Path, header: Mapping[str, Any], like: tuple[Any, Any], device: torch.device, seconds: float
    ) -> None:
        self._records, self._checkpoint = folder / "records.jsonl", folder / "checkpoint.safetensors"
        self._seconds = seconds  # between two checkpoints
        self.snapshot: Snapshot | None = None
        if self._checkpoint.exists():
            self.snapshot = load_snapshot(self._checkpoint, like, device)
            self._say_if_elsewhere(header)
        self._saved_round, self._saved_time = self._next_round, time.monotonic()
        self._rewind(header)
        self._file = self._records.open("ab")

    def write(self, record: RoundRecord, after: Snapshot) -> None:
        """Record a round, and now and then where it leaves everything."""
        self._append(record.to_json())
        self.snapshot = after  # only now: a record is never behind its checkpoint
        if time.monotonic() - self._saved_time >= self._seconds:
            self.save()

    def save(self) -> None:
        """Checkpoint the last recorded round, if that is not done yet."""
        if self.snapshot is not None and self._next_round > self._saved_round:
            os.fsync(self._file.fileno())
            save_snapshot(self._checkpoint, self.snapshot)
            self._saved_round, self._saved_time = self._next_round, time.monotonic()

    def finish(self) -> None:
        """The last line: what came out."""
        self._append({"summary": summarize(read_run(self._records).rounds)})
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Keep what was done, whatever ended it."""
        try:
            self.save()
        finally:
            self._file.close()

    @property
    def _next_round(self) -> int:
        return self.snapshot.next_round if self.snapshot else 0

    def _append(self, line: Mapping[str, Any]) -> None:
        self._file.write(_encoded(line))
        self._file.flush()

    def _rewind(self, header: Mapping[str, Any]) -> None:
        """Drop what the checkpoint does not know of: rounds after it, a torn last line."""
        lines = complete_lines(self._records) if self._records.exists() and self._next_round else []
        kept = [line for line in lines if line.get("round", self._next_round) < self._next_round]
        if len(kept) != self._next_round:
            missing = f"{len(kept)} of the {self._next_round} rounds in the checkpoint"
            raise NotARun(f"{self._records} holds {missing}; delete the folder")
        first = lines[0] if lines else dict(header)
        write_atomically(self._records, b"".join(_encoded(line) for line in (first, *kept)))

    def _say_if_elsewhere(self, header: Mapping[str, Any]) -> None:
        (before,) = (complete_lines(self._records) if self._records.exists() else [])[:1] or [{}]
        for key in ("device", "versions", "dataset"):
            if key in before and before[key] != header[key]:
                began = f"{self._records.parent.name} began with {key} {before[key]} and goes on with {header[key]}"
                warnings.warn(
                    f"{began}: its bits may differ from an uninterrupted run's", ResumedElsewhere, stacklevel=4
                )


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
