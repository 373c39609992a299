"""A run's folder: records line by line, a checkpoint that is never ahead of them, one writer at a time.

The simulator and a Flower federation use the same folder. Records are synced before a checkpoint replaces the last
one. After a crash, records of rounds that the checkpoint does not include are dropped, and these rounds run again.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .checkpoint import Checkpoint, DamagedCheckpoint, read_checkpoint, write_atomically, write_checkpoint
from .metrics import summarize
from .records import NotARun, RoundRecord, complete_lines, read_run
from .run_lock import RunLock, hold_lock

RECORDS, CHECKPOINT, LOCK = "records.jsonl", "checkpoint.safetensors", "lock"


class ResumedElsewhere(RuntimeWarning):
    """A run is resumed with other versions or on another device than it began with: its bits may differ."""


class RunFolder:
    """Reads and writes one run. It holds no state but its lock: everything else is in the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records, self.checkpoint = path / RECORDS, path / CHECKPOINT
        self._lock: RunLock | None = None

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint.exists()

    @property
    def is_finished(self) -> bool:
        """Whether the last line is a summary."""
        try:
            return read_run(self.path).summary is not None
        except NotARun:
            return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make this process the only writer. The lock ends with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with hold_lock(self.path / LOCK) as self._lock:
            try:
                yield
            finally:
                self._lock = None

    def begin(self, header: Mapping[str, Any], *, may_discard: int | None = None) -> None:
        """Start a new run: write the header, and nothing else.

        Rounds recorded without a checkpoint are discarded. `may_discard` limits how many (None: any number); more are
        an error, and nothing is overwritten.
        """
        n_rounds = sum("round" in line for line in self._lines())
        if may_discard is not None and n_rounds > may_discard:
            raise ValueError(
                f"{self.records} holds {n_rounds} rounds, but {self.checkpoint.name} is missing: nothing is "
                "overwritten; put it back, or choose another folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._replace_records([header])

    def append(self, record: RoundRecord) -> None:
        """Write a round down. A crash of this process does not lose it; a crash of the machine may."""
        self._append(record.to_json())

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, once the records of all its rounds are safe on the disk."""
        self._check_lock()
        self._sync_records()
        write_checkpoint(self.checkpoint, checkpoint)

    def load(self, device: torch.device | str = "cpu") -> Checkpoint:
        """Read the checkpoint and check that the records fit it. Changes nothing."""
        checkpoint = read_checkpoint(self.checkpoint, device)
        self._lines_until(checkpoint.next_round)
        return checkpoint

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Drop what the checkpoint does not include: later rounds, a summary, an incomplete last line."""
        self._replace_records(self._lines_until(checkpoint.next_round))

    def finish(self) -> None:
        """Write the last line, a summary. More rounds, if they are asked for later, take its place."""
        self._append({"summary": summarize(read_run(self.records).rounds)})
        self._sync_records()

    def warn_if_elsewhere(self, header: Mapping[str, Any]) -> None:
        """Warn if a run that began with other versions, on another device or other data is about to be resumed."""
        (before, *_) = self._lines() or [{}]
        for key in ("device", "versions", "dataset"):
            if key in before and before[key] != header[key]:
                began = f"{self.path.name} began with {key} {before[key]} and is resumed with {header[key]}"
                warnings.warn(
                    f"{began}: its bits may differ from an uninterrupted run's", ResumedElsewhere, stacklevel=3
                )

    def _lines(self) -> list[dict[str, Any]]:
        return complete_lines(self.records) if self.records.exists() else []

    def _lines_until(self, next_round: int) -> list[dict[str, Any]]:
        """The header and the records of the rounds before this one: all of them, or an error."""
        lines = self._lines()
        rounds = [line for line in lines[1:] if line.get("round", next_round) < next_round]
        if len(rounds) != next_round or any(line["round"] != number for number, line in enumerate(rounds)):
            raise DamagedCheckpoint(
                f"{self.records} needs rounds 0 to {next_round - 1}, which {self.checkpoint.name} includes, got "
                f"{len(rounds)} of them; restore the file, or delete {self.path} to start this run again"
            )
        return [*lines[:1], *rounds]

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def _append(self, line: Mapping[str, Any]) -> None:
        self._check_lock()
        with self.records.open("ab") as file:
            file.write(_encode(line))

    def _replace_records(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._check_lock()
        write_atomically(self.records, b"".join(map(_encode, lines)))

    def _sync_records(self) -> None:
        with self.records.open("ab") as file:
            os.fsync(file.fileno())


def is_finished(folder: Path) -> bool:
    """Whether this run has nothing left to do."""
    return RunFolder(folder).is_finished


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
