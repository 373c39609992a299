"""Checks that the records of a run are as they were written, and belong to its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .chain import INCOMPLETE, START, Line, find_fault, read_chain
from .checkpoint import DamagedCheckpoint, read_checkpoint
from .records import NotARun, list_record_files


@dataclass(frozen=True)
class Verification:
    """What was found in a folder."""

    n_lines: int
    n_rounds: int
    digest: str  # of the last line; whoever keeps it elsewhere can prove later that nothing before it was changed
    faults: tuple[str, ...]  # empty: everything is as it was written
    notes: tuple[str, ...]


def verify(folder: Path, expected: str | None = None) -> Verification:
    """Check the chain of records, the checkpoint's place in it, and that a digest from earlier is in it."""
    lines = list(read_chain(list_record_files(folder)))
    if not lines:
        raise NotARun(f"{folder} holds no records")
    faults, notes = list[str](), list[str]()
    if lines[-1].problem == INCOMPLETE:
        notes.append(f"{lines[-1]} {INCOMPLETE}: it is being written, or a crash left it")
        lines.pop()
    if fault := find_fault(lines):
        faults.append(fault[1])
    digests = {line.digest for line in lines if not line.problem}
    documented = {digest: line for line in lines if not line.problem for digest in line.documented}
    notes += [f"{line}: {_describe(line)}" for line in lines if line.kind in ("resumed", "repaired")]
    checkpoint = folder / "checkpoint.safetensors"
    if checkpoint.exists():
        faults += _check_checkpoint(checkpoint, lines)
    if expected is not None and expected not in digests:
        if expected in documented:
            notes.append(f"the expected digest is of a line that was dropped or replaced: see {documented[expected]}")
        else:
            faults.append(f"no line has the expected digest {expected}: lines were changed or removed")
    n_rounds = sum(line.kind == "round" for line in lines)
    return Verification(len(lines), n_rounds, lines[-1].digest if lines else START, tuple(faults), tuple(notes))


def _describe(line: Line) -> str:
    if line.problem:
        return line.problem
    content = line.read()
    if line.kind == "repaired":
        return f"records were repaired, {content['repaired'].get('lost')} rounds are lost"
    dropped = content.get("dropped") or {"lines": 0}
    return f"resumed before round {content['resumed']}, {dropped['lines']} later lines were dropped"


def _check_checkpoint(path: Path, lines: Sequence[Line]) -> list[str]:
    try:
        checkpoint = read_checkpoint(path)
    except DamagedCheckpoint as error:
        return [str(error)]
    known = {digest for line in lines if not line.problem for digest in (line.digest, *_replaced(line))}
    if checkpoint.records in known:
        return []
    return [f"{path} belongs to a line that the records do not hold: lines were changed or removed"]


def _replaced(line: Line) -> tuple[str, ...]:
    return line.documented if line.kind == "repaired" else ()
