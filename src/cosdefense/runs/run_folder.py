"""A run's folder: records line by line, a checkpoint that is never ahead of them, one writer at a time.

The simulator and a Flower federation use the same folder. Records are synced before a checkpoint replaces the last
one. After a crash, records of rounds that the checkpoint does not include are dropped, and these rounds run again; a
line in the records says so.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .chain import INCOMPLETE, START, Line, find_fault, read_chain, read_digest, seal, seal_all
from .checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from .files import PRIVATE, append_whole, make_private_folder, sync_folder, write_atomically
from .metrics import attack_stop_of, summarize
from .records import (
    RECORDS,
    DamagedRecords,
    NotARun,
    RoundRecord,
    complete_lines,
    list_record_files,
    name_record_file,
    read_run,
)
from .run_lock import LOCK, RunLock, hold_lock

CHECKPOINT = "checkpoint.safetensors"
MAX_FILE = 64 * 2**20  # bytes of records in one file; after that the next one is begun
MAX_DOCUMENTED = 100  # digests of dropped lines that are written down


class ResumedElsewhere(RuntimeWarning):
    """A run is resumed with other versions or on another device than it began with: its bits may differ."""


class RunFolder:
    """Reads and writes one run. It holds no state but its lock: everything else is in the folder."""

    def __init__(self, path: Path, max_file: int = MAX_FILE) -> None:
        self.path, self._max_file = path, max_file
        self.records, self.checkpoint = path / RECORDS, path / CHECKPOINT
        self._lock: RunLock | None = None

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint.exists()

    @property
    def is_finished(self) -> bool:
        """Whether there is a summary of all rounds."""
        try:
            return read_run(self.path).summary is not None
        except NotARun:
            return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make this process the only writer. The lock ends with the process, however that ends."""
        make_private_folder(self.path)
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
        lines = self.read_lines()
        n_rounds = sum(line.kind in ("round", "") and line.problem != INCOMPLETE for line in lines)  # "": unreadable
        if may_discard is not None and n_rounds > may_discard:
            raise ValueError(
                f"{self.records} holds {n_rounds} rounds, but {self.checkpoint.name} is missing: nothing is "
                "overwritten; put it back, or choose another folder"
            )
        make_private_folder(self.path)
        self.replace_lines([header, *([_describe_resume(0, lines)] if lines else [])])

    def append(self, record: RoundRecord) -> None:
        """Write a round down. A crash of this process does not lose it; a crash of the machine may."""
        self._append(record.to_json())

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, once the records of all its rounds are safe on the disk."""
        self._check_lock()
        self._sync_records()
        digest = _read_last_digest(list_record_files(self.path)[-1])
        write_checkpoint(self.checkpoint, replace(checkpoint, records=digest))

    def load(self, device: torch.device | str = "cpu") -> Checkpoint:
        """Read the checkpoint and check that the records fit it. Changes nothing."""
        checkpoint = read_checkpoint(self.checkpoint, device)
        self._count_included(self.read_lines(), checkpoint)
        return checkpoint

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Drop what the checkpoint does not include: later rounds, an incomplete line. A new line says so."""
        lines = self.read_lines()
        n = self._count_included(lines, checkpoint)
        while n < len(lines) and _may_follow(lines[n], lines[n - 1]):
            n += 1  # somebody may have noted its digest
        kept, dropped = lines[:n], lines[n:]
        note = _describe_resume(checkpoint.next_round, dropped)
        if dropped:
            self._replace_tail(kept[-1], note)
        else:
            self._append(note)
        self._sync_records()

    def finish(self) -> None:
        """Write the last line, a summary. It no longer counts if more rounds are asked for later."""
        run = read_run(self.path)
        self._append({"summary": summarize(run.rounds, attack_stop_of(run))})
        self._sync_records()

    def warn_if_elsewhere(self, header: Mapping[str, Any]) -> None:
        """Warn if a run that began with other versions, on another device or other data is about to be resumed."""
        (before, *_) = complete_lines(self.records) if self.records.exists() else [{}]
        for key in ("device", "versions", "dataset"):
            if key in before and before[key] != header[key]:
                began = f"{self.path.name} began with {key} {before[key]} and is resumed with {header[key]}"
                warnings.warn(
                    f"{began}: its bits may differ from an uninterrupted run's", ResumedElsewhere, stacklevel=3
                )

    def read_lines(self) -> list[Line]:
        """The lines of the records, and what the chain says about each."""
        return list(read_chain(list_record_files(self.path)))

    def replace_lines(self, contents: Sequence[Mapping[str, Any]]) -> None:
        """Write new records in the place of all there are."""
        self._check_lock()
        _, *later = list_record_files(self.path) or [self.records]
        write_atomically(self.records, seal_all(contents), self._get_mode())
        _remove(later)

    def _replace_tail(self, last: Line, content: Mapping[str, Any]) -> None:
        """Write this line in the place of all lines after the last one that is kept."""
        self._check_lock()
        files = list_record_files(self.path)
        with last.file.open("rb") as file:
            kept = file.read(last.end)
        write_atomically(last.file, kept + seal(content, last.digest), self._get_mode())
        _remove(files[files.index(last.file) + 1 :])

    def _count_included(self, lines: Sequence[Line], checkpoint: Checkpoint) -> int:
        """How many lines the checkpoint includes: those of all its rounds, in an intact chain, or an error."""
        ends = [i for i, line in enumerate(lines, start=1) if _ends(line, checkpoint)]
        included, fault = lines[: ends[0] if ends else len(lines)], find_fault(lines)
        numbers = [line.round for line in included if line.kind == "round" and not line.problem]
        if fault and fault[0] < len(included):
            reason = fault[1]
        elif len(numbers) != checkpoint.next_round or numbers != list(range(checkpoint.next_round)):
            reason = f"got {len(numbers)} of them"
        elif not ends:
            reason = "no line has the digest that it holds"
        else:
            return len(included)
        raise DamagedRecords(
            f"{self.records} needs rounds 0 to {checkpoint.next_round - 1} as {self.checkpoint.name} includes them: "
            f"{reason}. The checkpoint is intact: restore the records from a backup, or run `cosdefense repair "
            f"{self.path}`, which keeps what can be read and marks other rounds as lost"
        )

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def _append(self, content: Mapping[str, Any]) -> None:
        self._check_lock()
        files = list_record_files(self.path)
        path = files[-1] if files else self.records
        text = seal(content, _read_last_digest(path) if files else START)
        if files and path.stat().st_size >= self._max_file:
            self._sync_records()  # only the last file may be incomplete after a crash
            path = self.path / name_record_file(len(files))
        append_whole(path, text, self._get_mode())
        if path not in files:
            sync_folder(self.path)

    def _sync_records(self) -> None:
        with list_record_files(self.path)[-1].open("rb+") as file:
            os.fsync(file.fileno())

    def _get_mode(self) -> int:
        """The permissions of records: what an operator has set on the first file stays, for the next ones too."""
        return stat.S_IMODE(self.records.stat().st_mode) if self.records.exists() else PRIVATE


def is_finished(folder: Path) -> bool:
    """Whether this run has nothing left to do."""
    return RunFolder(folder).is_finished


def _read_last_digest(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
        digest = read_digest(file.read())
    if digest is None:
        raise DamagedRecords(f"{path} does not end with a complete line: resume the run, which drops it")
    return digest


def _ends(line: Line, checkpoint: Checkpoint) -> bool:
    """Whether this is the last line that the checkpoint includes."""
    replaced = line.documented if line.kind == "repaired" else ()
    return checkpoint.records is not None and checkpoint.records in (line.digest, *replaced)


def _may_follow(line: Line, before: Line) -> bool:
    """Whether a line is no round: a summary, or where the run was resumed before and stopped within a round."""
    return line.kind in ("summary", "resumed") and not line.problem and line.previous == before.digest


def _describe_resume(next_round: int, dropped: Sequence[Line]) -> dict[str, Any]:
    """The line that says where a run was resumed, and which lines were dropped."""
    if not dropped:
        return {"resumed": next_round}
    digests = [line.digest for line in dropped if not line.problem]
    n_bytes = sum(line.end - line.start for line in dropped)
    return {
        "resumed": next_round,
        "dropped": {"lines": len(dropped), "bytes": n_bytes, "digests": digests[-MAX_DOCUMENTED:]},
    }


def _remove(files: Sequence[Path]) -> None:
    for path in reversed(files):  # a crash leaves no gap
        path.unlink()
