"""Repairs damaged records, so that they do not keep a run with an intact checkpoint from being resumed."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chain import INCOMPLETE, Line, find_fault
from .checkpoint import Checkpoint, read_checkpoint
from .files import write_atomically
from .records import DamagedRecords, RoundRecord, list_record_files
from .run_folder import RunFolder

MAX_LOST = 100_000  # rounds that are marked as lost; with more, the checkpoint is not one of this run


@dataclass(frozen=True)
class Repair:
    """What was repaired."""

    kept: int  # rounds
    lost: tuple[int, ...]  # rounds
    copies: tuple[Path, ...]  # of the damaged files


def repair(folder: RunFolder) -> Repair | None:
    """Write records that fit the checkpoint: all lines that are as they were written, other rounds marked as lost.

    The damaged files are kept beside them. The checkpoint is not touched. None: there is nothing to repair.
    """
    with folder.lock():
        checkpoint, lines = read_checkpoint(folder.checkpoint), folder.read_lines()
        if _fits(folder):
            fault = find_fault([line for line in lines if line.problem != INCOMPLETE])
            if fault is None:
                return None
            copies = _copy(list_record_files(folder.path))
            folder.rewind(checkpoint)  # only lines after the checkpoint are damaged
            return Repair(checkpoint.next_round, (), tuple(copies))
        header, rounds, summary = _read_intact(lines, checkpoint)
        lost = [number for number in range(checkpoint.next_round) if number not in rounds]
        if len(lost) > MAX_LOST:
            needed = f"rounds 0 to {checkpoint.next_round - 1:,}, which {folder.checkpoint.name} includes"
            raise DamagedRecords(f"{folder.path}: of {needed}, {len(lost):,} are missing: restore the records")
        rounds |= {number: RoundRecord(number, (), (), lost=True).to_json() for number in lost}
        copies = _copy(list_record_files(folder.path))
        note = {
            "lost": len(lost),
            "replaces": checkpoint.records,
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in copies},
        }
        content = [header or _rebuild_header(folder.path), *(rounds[number] for number in sorted(rounds))]
        folder.replace_lines([*content, {"repaired": note}, *([summary] if summary else [])])
        return Repair(len(rounds) - len(lost), tuple(lost), tuple(copies))


def _fits(folder: RunFolder) -> bool:
    try:
        folder.load()
    except DamagedRecords:
        return False
    return True


def _read_intact(
    lines: Sequence[Line], checkpoint: Checkpoint
) -> tuple[dict[str, Any] | None, dict[int, dict[str, Any]], dict[str, Any] | None]:
    """The header, the rounds that the checkpoint includes, and the summary if it is the last line."""
    intact = [line for line in lines if not line.problem]
    header = next((line.read() for line in intact if line.kind == "experiment"), None)
    rounds = dict[int, dict[str, Any]]()
    for line in intact:
        if line.round is not None and 0 <= line.round < checkpoint.next_round:
            rounds.setdefault(line.round, line.read())
    finished = bool(intact) and intact[-1].kind == "summary" and intact[-1] is lines[-1]
    return header, rounds, intact[-1].read() if finished else None


def _rebuild_header(folder: Path) -> Mapping[str, Any]:
    """What is known of a run whose header is lost. Parts are named, not built."""
    try:
        experiment = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
        (attack,), (defense,), (seed,) = experiment["attacks"], experiment["defenses"], experiment["seeds"]
        labels = {"attack": attack["label"], "defense": defense["label"], "seed": seed}
    except (OSError, ValueError, KeyError, TypeError):  # a federation has no such file
        return {"experiment": {"name": folder.resolve().name}}
    return {"experiment": experiment, **labels}


def _copy(files: Sequence[Path]) -> list[Path]:
    """Copies beside the files, under names that nobody reads as records."""
    copies = []
    for path in files:
        number = 1
        while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        write_atomically(copy, path.read_bytes())
        copies.append(copy)
    return copies
