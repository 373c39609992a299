"""A hash chain over the lines of records: each holds the digest of the line before it, and its own.

A line ends with `,"previous":"<digest of the line before>","digest":"<SHA-256 of this line up to here>"}`. So a line
that was changed, removed, added or moved is found. Whoever can write the files can also compute a new chain: keep the
last digest elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START = ""  # what the first line has in place of a digest
CHANGED, UNSEALED, INCOMPLETE = "was changed", "has no digest", "is incomplete"

_SEAL = re.compile(rb',"previous":"([0-9a-f]{64}|)","digest":"([0-9a-f]{64})"\}\n\Z')
_DIGEST_LENGTH = len(b',"digest":""}\n') + 64


@dataclass(frozen=True)
class Line:
    """Where a line is, what it is linked to, and whether it is what was written."""

    file: Path
    number: int  # in its file, from 1
    start: int  # offsets in the file
    end: int
    previous: str = START
    digest: str = ""
    kind: str = ""  # experiment (the header), round, resumed, repaired, summary
    round: int | None = None
    documented: tuple[str, ...] = ()  # digests of earlier lines that this line says were dropped or replaced
    problem: str = ""  # empty: the line is intact

    def __str__(self) -> str:
        return f"{self.file}, line {self.number}"

    def read(self) -> dict[str, Any]:
        """The content of an intact line."""
        with self.file.open("rb") as file:
            file.seek(self.start)
            return parse_line(file.read(self.end - self.start)) or {}


def seal(content: Mapping[str, Any], previous: str) -> bytes:
    """A line with its place in the chain."""
    body = json.dumps({**content, "previous": previous}, separators=(",", ":"), allow_nan=False)[:-1].encode()
    return body + b',"digest":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def seal_all(contents: Iterable[Mapping[str, Any]], previous: str = START) -> bytes:
    """Several lines, each linked to the one before it."""
    sealed = list[bytes]()
    for content in contents:
        sealed.append(seal(content, previous))
        previous = read_digest(sealed[-1]) or START
    return b"".join(sealed)


def parse_line(text: bytes) -> dict[str, Any] | None:
    """A line without its place in the chain; None: it is no JSON object."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    return {key: value for key, value in content.items() if key not in ("previous", "digest")}


def read_digest(text: bytes) -> str | None:
    """The digest at the end of a sealed line, or of a file of such lines."""
    found = re.search(rb',"digest":"([0-9a-f]{64})"\}\n\Z', text[-_DIGEST_LENGTH:])
    return found[1].decode() if found else None


def read_chain(files: Iterable[Path]) -> Iterator[Line]:
    """The lines of these files, each checked by itself."""
    for path in files:
        start = 0
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                yield _check(text, Line(path, number, start, start + len(text)))
                start += len(text)


def _check(text: bytes, line: Line) -> Line:
    place: dict[str, Any] = {"file": line.file, "number": line.number, "start": line.start, "end": line.end}
    if not text.endswith(b"\n"):
        return Line(**place, problem=INCOMPLETE)
    found, content = _SEAL.search(text), parse_line(text)
    if content is None:
        return Line(**place, problem=CHANGED)
    if found is None:
        return Line(**place, problem=UNSEALED)
    previous, digest = found[1].decode(), found[2].decode()
    body = text[: found.start(2) - len(b',"digest":"')]
    problem = "" if hashlib.sha256(body).hexdigest() == digest else CHANGED
    kinds = ("experiment", "round", "resumed", "repaired", "summary")
    kind = next((kind for kind in kinds if kind in content), "")
    number = content["round"] if kind == "round" and isinstance(content["round"], int) else None
    return Line(**place, previous=previous, digest=digest, kind=kind, round=number, documented=_documented(content),
                problem=problem)  # fmt: skip


def _documented(content: Mapping[str, Any]) -> tuple[str, ...]:
    """The digests that a line says were dropped when a run was resumed, or replaced when it was repaired."""
    dropped, repaired = content.get("dropped"), content.get("repaired")
    digests = dropped.get("digests") if isinstance(dropped, dict) else None
    replaced = repaired.get("replaces") if isinstance(repaired, dict) else None
    return tuple(digest for digest in [*(digests or ()), replaced] if isinstance(digest, str))


def find_fault(lines: Sequence[Line]) -> tuple[int, str] | None:
    """The index of the first line that is not as it was written, and what happened to it; None: the chain is intact."""
    places, previous = {START: -1}, START
    for index, line in enumerate(lines):
        if not line.problem:
            places.setdefault(line.digest, index)
    for index, line in enumerate(lines):
        if line.problem or line.previous != previous:
            return _explain(lines, index, previous, places)
        previous = line.digest
    return None


def _explain(lines: Sequence[Line], index: int, previous: str, places: Mapping[str, int]) -> tuple[int, str]:
    line = lines[index]
    belongs_after = None if line.problem else places.get(line.previous)
    if belongs_after is not None and belongs_after > index:
        return index, f"{line} is out of order: it belongs after {lines[belongs_after]}"
    following = lines[index + 1] if index + 1 < len(lines) else None
    is_copy = not line.problem and places[line.digest] < index
    if is_copy or (following and not following.problem and following.previous == previous):
        return index, f"{line} was added"
    if line.problem:
        return index, f"{line} {line.problem}"
    if belongs_after is not None:
        return belongs_after + 1, f"{lines[belongs_after + 1]} was added"
    return index, f"{line}: what was before it was removed"
