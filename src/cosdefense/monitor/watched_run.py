"""A run's folder while another process writes to it: what is shown of it, and what has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ..runs.follow import MAX_ROUNDS, RunFollower
from ..runs.records import RoundRecord
from ..runs.run_lock import LOCK, seems_held
from ..runs.safe_text import printable
from .rules import DEFAULT_RULES, Rule
from .view import Json, RunView

MAX_PARTS = 10_000  # of the records that one look reads


class Change(NamedTuple):
    """A whole snapshot, or what was added to the last one."""

    kind: Literal["snapshot", "update"]
    content: Json


class WatchedRun:
    """Looks at a folder again and again. Never writes to it."""

    def __init__(self, folder: Path, rules: Sequence[Rule] = DEFAULT_RULES) -> None:
        self.folder, self._rules = folder, rules
        self._follower = RunFollower(folder)
        self.view: RunView | None = None  # None: nothing is recorded yet
        self._error = ""
        self._shown = self._describe_status()

    @property
    def status(self) -> str:
        return str(self._shown["status"])

    def look(self) -> Change | None:
        """What has changed since the last look; None: nothing."""
        restarted, added = False, list[RoundRecord]()
        try:
            for _ in range(MAX_PARTS):
                new = self._follower.read()
                restarted |= new.restarted or self.view is None
                self._add(new.rounds, new.restarted)
                added = [*added, *new.rounds][-MAX_ROUNDS:]
                if len(new.rounds) < MAX_ROUNDS:
                    break
            self._error = ""
        except Exception as error:  # whatever is wrong with the files: the next look may find them repaired
            self._error = printable(f"{type(error).__name__}: {error}")
        return self._compare(added, restarted)

    def snapshot(self) -> Json:
        return self._shown | (self.view.snapshot() if self.view else {})

    def _add(self, rounds: Sequence[RoundRecord], restarted: bool) -> None:
        if restarted:
            self.view = None
        if self.view is None and self._follower.header is not None:
            self.view = RunView(self._follower.header, self._rules)
        for record in rounds:
            if self.view:
                self.view.add(record)

    def _compare(self, added: Sequence[RoundRecord], restarted: bool) -> Change | None:
        before, self._shown = self._shown, self._describe_status()
        if restarted and (self.view or before["status"] != self.status):
            return Change("snapshot", self.snapshot())
        if added and self.view:
            return Change("update", self._shown | self.view.update(added))
        return Change("update", self._shown) if self._shown != before else None

    def _describe_status(self) -> Json:
        if self._error:
            status = "unreadable"
        elif self._follower.header is None:
            status = "waiting"
        elif self._follower.summary is not None:
            status = "finished"
        else:
            status = "running" if seems_held(self.folder / LOCK) else "stopped"
        return {"folder": printable(self.folder), "status": status, "error": self._error}
