"""Checks that the records of a run are as they were written, and belong to its checkpoint."""

from __future__ import annotations

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
    """Check the chain of records, the checkpoint's place in it, and that a digest from earlier is in it.

    The run may be written meanwhile: the checkpoint is read first, because records are always ahead of it.
    """
    included, faults = _read_included(folder / "checkpoint.safetensors")
    lines, notes = list(read_chain(list_record_files(folder))), list[str]()
    if not lines:
        raise NotARun(f"{folder} holds no records")
    if lines[-1].problem == INCOMPLETE:
        notes.append(f"{lines[-1]} {INCOMPLETE}: it is being written, or a crash left it")
        lines.pop()
    if fault := find_fault(lines):
        faults.insert(0, fault[1])
    notes += [f"{line}: {_describe(line)}" for line in lines if line.kind in ("resumed", "repaired")]
    intact = [line for line in lines if not line.problem]
    digests = {line.digest for line in intact}
    replaced = {digest for line in intact if line.kind == "repaired" for digest in line.documented}
    documented = {digest: line for line in intact for digest in line.documented}
    if included is not None and included not in digests | replaced:
        faults.append(f"{folder} has a checkpoint that includes other records: lines were changed or removed")
    if expected is not None and expected not in digests:
        # Not a proof: whoever can write the file can write such a line.
        hint = f" ({documented[expected]} says that it was dropped or replaced)" if expected in documented else ""
        faults.append(f"no line has the expected digest {expected}: lines were changed or removed{hint}")
    n_rounds = sum(line.kind == "round" for line in lines)
    return Verification(len(lines), n_rounds, lines[-1].digest if lines else START, tuple(faults), tuple(notes))


def _read_included(path: Path) -> tuple[str | None, list[str]]:
    """The digest of the last record that a checkpoint includes, and what is wrong with the file."""
    if not path.exists():
        return None, []
    try:
        return read_checkpoint(path).records or START, []
    except DamagedCheckpoint as error:
        return None, [str(error)]


def _describe(line: Line) -> str:
    if line.problem:
        return line.problem
    content = line.read()
    if line.kind == "repaired":
        return f"records were repaired, {content['repaired'].get('lost')} rounds are lost"
    dropped = content.get("dropped") or {"lines": 0}
    return f"resumed before round {content['resumed']}, {dropped['lines']} later lines were dropped"
