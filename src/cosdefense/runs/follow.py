"""Follows the records of a run while another process writes them. Reads only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chain import parse_line
from .records import NotARun, RoundRecord, list_record_files

MAX_ROUNDS = 500  # read at once: the rounds of a long run need not all be in memory


@dataclass(frozen=True)
class NewRounds:
    """What was recorded since the last look."""

    rounds: tuple[RoundRecord, ...] = ()
    restarted: bool = False  # earlier rounds no longer count: the run was resumed from a checkpoint, or begun again


class RunFollower:
    """Reads the records of one run, a few at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forget()

    def _forget(self) -> None:
        self.header: Mapping[str, Any] | None = None  # None: nothing is recorded yet
        self.summary: Mapping[str, Any] | None = None  # None: the run is not finished
        self._file: Path | None = None  # which is being read, how far, and the line before that
        self._offset, self._last_line = 0, b""

    def read(self, limit: int = MAX_ROUNDS) -> NewRounds:
        """The next rounds. Call it again at once if there are `limit` of them."""
        restarted = self._file is not None and not self._is_unchanged(self._file)
        if restarted:
            self._forget()
        rounds: list[RoundRecord] = []
        for line in self._read_lines():
            if self.header is None:
                self.header = _check_header(line, self.folder)
            elif "round" in line:
                rounds.append(_to_round(line, self.folder))
            self.summary = None if "resumed" in line else line.get("summary", self.summary)
            if len(rounds) == limit:
                break
        return NewRounds(tuple(rounds), restarted)

    def _is_unchanged(self, path: Path) -> bool:
        """Whether the last line that was read is still where it was."""
        try:
            with path.open("rb") as file:
                file.seek(self._offset - len(self._last_line))
                return file.read(len(self._last_line)) == self._last_line
        except OSError:
            return False

    def _read_lines(self) -> Iterator[dict[str, Any]]:
        """The lines that were written whole, from where the last call stopped."""
        files = list_record_files(self.folder)
        for path in files[files.index(self._file) if self._file in files else 0 :]:
            if path != self._file:
                self._file, self._offset, self._last_line = path, 0, b""
            with path.open("rb") as file:
                file.seek(self._offset)
                for text in file:
                    if not text.endswith(b"\n"):
                        return  # it is being written
                    self._offset, self._last_line = self._offset + len(text), text
                    yield _parse(text, path)


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    line = parse_line(text)
    if line is None:
        raise NotARun(f"{path} holds a line that is not a JSON object")
    return line


def _check_header(line: dict[str, Any], folder: Path) -> dict[str, Any]:
    if not isinstance(line.get("experiment"), dict):
        raise NotARun(f"{folder} has records without a header line; they were not written by cosdefense")
    return line


def _to_round(line: dict[str, Any], folder: Path) -> RoundRecord:
    try:
        return RoundRecord.from_json(line)
    except TypeError as error:
        raise NotARun(f"{folder} holds a round that cannot be read: {error}") from error
