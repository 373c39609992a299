"""Many finished runs in one compressed file, small enough to be kept in a repository.

A pack is gzipped JSON lines. The first line names the format and its version, every further line is one run: its
header, its rounds as columns, its summary.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from ..catalog.options import ConfigError
from .files import PUBLIC, write_atomically
from .records import NotARun, RoundRecord, RunRecord, read_run

PACK = "records.jsonl.gz"
FORMAT = "cosdefense records"
VERSION = 1


def compact(run: RunRecord, *, whole_rounds: bool = False) -> RunRecord:
    """What is published of a finished run: every evaluation, and the summary of all rounds.

    `whole_rounds` keeps every round with its clients, weights and scores. Seconds and memory stay in the summary.
    """
    if run.summary is None:
        raise ValueError("only a finished run can be published: its summary describes the rounds that are left out")
    if whole_rounds:
        rounds = [replace(record, seconds={}, peak_memory={}) for record in run.rounds]
    else:  # the last round, evaluated or not, says how many there were
        rounds = [_measurements(r) for r in run.rounds if r.accuracy is not None or r is run.rounds[-1]]
    header = {key: value for key, value in run.header.items() if key != "split"}  # thousands of counts, from the seed
    return RunRecord({**header, "thinned": True}, tuple(rounds), run.summary)


def write_pack(path: Path, runs: Iterable[RunRecord]) -> None:
    """Write the runs in the given order. The same runs always give the same bytes."""
    lines = [{"header": run.header, "rounds": _to_columns(run.rounds), "summary": run.summary} for run in runs]
    write_lines(path, FORMAT, VERSION, lines)


def read_pack(path: Path) -> Iterator[RunRecord]:
    """The runs of a pack, one after the other."""
    for line in read_lines(path, FORMAT, VERSION):
        try:
            rounds = [RoundRecord.from_json(row) for row in _to_rows(line["rounds"])]
            yield RunRecord(line["header"], tuple(rounds), line["summary"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotARun(f"{path} holds a run that cannot be read: {error!r}") from error


def find_runs(path: Path) -> Iterator[tuple[str, RunRecord]]:
    """All runs in a pack, in one `records.jsonl`, or in a folder that holds such files at any depth.

    Each comes with a name that no other has: its folder, or its number in the pack.
    """
    files = [path] if path.is_file() else sorted([*path.rglob("records.jsonl"), *path.rglob(PACK)])
    if not files:
        raise ConfigError(f"{path} holds no run: no records.jsonl and no {PACK} in it or below")
    for file in files:
        if file.suffix == ".gz":
            yield from ((f"{file}:{number}", run) for number, run in enumerate(read_pack(file)))
        else:
            yield str(file.parent), read_run(file)


def write_lines(path: Path, kind: str, version: int, lines: Sequence[Mapping[str, Any]]) -> None:
    """Gzipped JSON lines below a line that says what they are; without a date, so that the bytes are reproducible."""
    content = BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=content, mtime=0) as file:
        for line in ({"format": kind, "version": version, "lines": len(lines)}, *lines):
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue(), PUBLIC)


def read_lines(path: Path, kind: str, version: int) -> list[dict[str, Any]]:
    """The lines again, if they are of that kind and version and complete."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            first, *lines = map(json.loads, file)
        found, n = (first["format"], first["version"]), first["lines"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise NotARun(f"{path} is not a readable file of {kind}: {error!r}") from error
    if found != (kind, version):
        raise NotARun(f"{path} must hold {kind}, version {version}, got {found[0]}, version {found[1]}")
    objects = [line for line in lines if isinstance(line, dict)]
    if len(objects) != n:
        raise NotARun(f"{path} must hold {n} objects, got {len(objects)}")
    return objects


def _measurements(record: RoundRecord) -> RoundRecord:
    """Only what was measured: who took part in one round of many tells little, and the summary counts all of them."""
    return replace(
        record, clients=(), weights=(), malicious=None, reasons=(), scores={}, points={}, seconds={}, peak_memory={}
    )


def _to_columns(rounds: Sequence[RoundRecord]) -> dict[str, list[Any]]:
    """One list per field that any round has; null where a round lacks it."""
    rows = [{name: value for name, value in record.to_json().items() if value != []} for record in rounds]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _to_rows(columns: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        given = zip(columns, values, strict=True)
        yield {"clients": [], "weights": []} | {name: value for name, value in given if value is not None}
