"""A run that is done on another machine, as seen from here: what it writes there is written here too."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...cli import console
from ..checkpoint import write_atomically
from ..many_runs import Job
from ..records import NotARun, RoundRecord, read_run
from .transport import Parcel
from .worker import RECORDS, WHOLE, RunRequest

FAILURE = "failure.log"  # in the folder of a run that failed by itself: its traceback


@dataclass
class RemoteRun:
    """One run and how it stands."""

    job: Job
    order: RunRequest  # without files
    show: Callable[[RoundRecord], None]
    shown: int = 0  # rounds that the user was shown
    deaths: int = 0  # of workers since the last new checkpoint
    heard: bool = False  # whether the present worker has sent something

    def begin(self) -> RunRequest:
        """What a worker needs to go on where the folder stops."""
        (self.job.folder / FAILURE).unlink(missing_ok=True)
        self.heard, self.shown = False, max(self.shown, self._recorded())
        paths = [self.job.folder / name for name in (RECORDS, *WHOLE)]
        return replace(self.order, files={path.name: path.read_bytes() for path in paths if path.exists()})

    def store(self, parcel: Parcel) -> None:
        """Records first, and safe on the disk: a checkpoint must never be ahead of them."""
        self.heard = True
        records = self.job.folder / RECORDS
        if parcel.lines and not parcel.offset:
            write_atomically(records, parcel.lines)
        elif parcel.lines:
            with records.open("ab") as file:
                file.write(parcel.lines)
                file.flush()
                os.fsync(file.fileno())
        for name, content in parcel.files.items():
            write_atomically(self.job.folder / name, content)
        if "checkpoint.safetensors" in parcel.files:
            self.deaths = 0
        self._tell(parcel)

    def fail(self, reason: str, traceback: str) -> str:
        """Keep what is known of a run that failed by itself, and say it in a line."""
        log = self.job.folder / FAILURE
        log.write_text(traceback, encoding="utf-8")
        return f"{self.job.label}: {reason} (see {log})"

    def _tell(self, parcel: Parcel) -> None:
        for note in parcel.notes:
            console.note(f"{self.job.label}: {note}")
        for line in map(json.loads, parcel.lines.splitlines()):
            if line.get("round", -1) >= self.shown:  # a run that goes on repeats what was shown before
                self.show(RoundRecord.from_json(line))
                self.shown = line["round"] + 1

    def _recorded(self) -> int:
        try:
            return len(read_run(self.job.folder).rounds)
        except NotARun:
            return 0
