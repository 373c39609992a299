"""A run that is made on another machine, as the driver sees it: what it writes there is written here too."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace

from ..files import open_with, write_atomically
from ..observer import Job, Observer
from ..records import RECORDS, NotARun, RoundRecord, list_record_files, read_run
from ..run_folder import CHECKPOINT
from .transport import Upload
from .worker import REPLACED_FILES, RunRequest

FAILURE = "failure.log"  # in the folder of a run that failed: its traceback


@dataclass
class RemoteRun:
    """One run and its present state."""

    job: Job
    request: RunRequest  # without files
    observer: Observer
    next_round: int = 0  # that the observer has not seen yet
    crashes: int = 0  # of workers since the last new checkpoint
    reported: bool = False  # whether the present worker has uploaded something

    def start(self) -> RunRequest:
        """What a worker needs to resume where the folder stops."""
        (self.job.folder / FAILURE).unlink(missing_ok=True)
        self.reported, self.next_round = False, max(self.next_round, self._n_recorded())
        paths = [self.job.folder / name for name in REPLACED_FILES]
        files = {path.name: path.read_bytes() for path in paths if path.exists()}
        if records := list_record_files(self.job.folder):
            files[RECORDS] = b"".join(path.read_bytes() for path in records)  # as one file: the chain is the same
        return replace(self.request, files=files)

    def store(self, upload: Upload) -> None:
        """Write the records first, and sync them: a checkpoint must never be ahead of them."""
        if not self.reported:
            self.observer.run_started(self.job)
            self.reported = True
        records = self.job.folder / RECORDS
        if upload.lines and not upload.offset:
            _, *later = list_record_files(self.job.folder) or [records]
            write_atomically(records, upload.lines)
            for path in reversed(later):
                path.unlink()
        elif upload.lines:
            with open(records, "ab", opener=open_with()) as file:
                file.write(upload.lines)
                file.flush()
                os.fsync(file.fileno())
        for name, content in upload.files.items():
            write_atomically(self.job.folder / name, content)
        if CHECKPOINT in upload.files:
            self.crashes = 0
        self._notify(upload)

    def fail(self, reason: str, traceback: str) -> str:
        """Keep the traceback of a run that failed, and return one line about it."""
        log = self.job.folder / FAILURE
        write_atomically(log, traceback.encode())
        return f"{self.job.label}: {reason} (see {log})"

    def _notify(self, upload: Upload) -> None:
        for note in upload.notes:
            self.observer.note(f"{self.job.label}: {note}")
        for line in map(json.loads, upload.lines.splitlines()):
            if line.get("round", -1) >= self.next_round:  # a resumed run sends its earlier records again
                self.observer.round_recorded(self.job, RoundRecord.from_json(line))
                self.next_round = line["round"] + 1

    def _n_recorded(self) -> int:
        try:
            return len(read_run(self.job.folder).rounds)
        except NotARun:
            return 0
