"""What is written down about a run: `records.jsonl`, one JSON object a line.

The first line is the header (the whole experiment, versions, device), then one line per round, and a
summary once the run is finished. A line `resumed` says where a run was resumed, a line `repaired` that its
records were. The simulator and a real federation write the same format; where nobody knows who is malicious,
`malicious` is null. Records of a long run continue in `records-0001.jsonl` and so on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chain import parse_line

if TYPE_CHECKING:  # the commands' `--help` comes through here, and needs no torch
    from torch import Tensor

    from ..core import Verdict


@dataclass(frozen=True)
class RoundRecord:
    """One round in plain numbers."""

    round: int
    clients: tuple[int, ...]  # the identities of the sampled clients
    weights: tuple[float, ...]  # how much each counted; 0 = rejected
    malicious: tuple[bool, ...] | None = None  # who attacked in this round, where that is known
    defended: bool = True  # False while the defense was not yet switched on
    skipped: str | None = None  # why the model stayed as it was, if it did
    lost: bool = False  # the round was run, but its record was damaged
    reasons: tuple[
        str | None, ...
    ] = ()  # why each client was rejected, where a real federation knows; None: it was not
    # Clients of whom something was noticed that is no reason to reject them, by what: "buffers".
    notes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    names: tuple[str | None, ...] = ()  # of the clients, where an operator has named nodes
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)  # by filter; None: never judged
    points: Mapping[str, tuple[tuple[float, float] | None, ...]] = field(default_factory=dict)  # pictures by filter
    accuracy: float | None = None  # this and the seven below only in evaluated rounds
    loss: float | None = None
    attack_success: float | None = None  # only under attacks that want a particular answer
    source_recall: float | None = None  # likewise: how many of the images they want it for still get the true one
    clean_target_rate: float | None = None  # likewise: how many of those images get the wanted answer without a trigger
    adversarial_accuracy: float | None = None  # on images moved by PGD, where that is asked for
    batch_statistics_accuracy: float | None = None  # BatchNorm tested with each test batch's own statistics
    class_recalls: tuple[float | None, ...] = ()  # the share of each class of test images that got its label
    metrics: Mapping[str, float | None] = field(default_factory=dict)  # what else was measured, by name
    # Accuracy, loss and those metrics for each client of the federation, on its own test samples; None: it has none.
    client_metrics: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase: train, attack, defend, evaluate
    peak_memory: Mapping[str, int] = field(default_factory=dict)  # bytes, by phase
    n_bytes: Mapping[str, int] = field(default_factory=dict)  # of messages: train-sent, train-received, evaluate-sent

    @classmethod
    def of_verdict(
        cls,
        number: int,
        clients: Sequence[int],
        verdict: Verdict | None,
        *,
        excluded: Sequence[int] = (),
        skipped: str | None = None,
        **others: Any,
    ) -> RoundRecord:
        """What a defense decided about these clients, which are the rows of its verdict; None: it judged nobody.

        The `excluded`, whose updates never reached the defense, follow them with weight 0 and no scores. `others` are
        the other fields of a record.
        """
        evidence: Mapping[str, Tensor] = {} if verdict is None else verdict.evidence
        points: Mapping[str, Tensor] = {} if verdict is None else verdict.points
        weights = [0.0] * len(clients)
        scores, places = list[Any](), list[Any]()
        if verdict is not None:
            from ..ops import read_together  # who only reads records does without torch

            weights, *others_read = read_together([verdict.weights, *evidence.values(), *points.values()])
            scores, places = others_read[: len(evidence)], others_read[len(evidence) :]
        nothing = (None,) * len(excluded)
        return cls(
            round=number,
            clients=(*clients, *excluded),
            weights=(*weights, *(0.0 for _ in excluded)),
            skipped=skipped or (None if verdict is None else verdict.skipped),
            scores={name: (*map(_known, read), *nothing) for name, read in zip(evidence, scores, strict=True)},
            points={name: (*map(_pair, read), *nothing) for name, read in zip(points, places, strict=True)},
            **others,
        )

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the defaults; numbers shortened to six digits, truth values as 0 and 1."""
        line = {f.name: getattr(self, f.name) for f in fields(self)}
        line["malicious"] = None if self.malicious is None else [int(is_malicious) for is_malicious in self.malicious]
        empty: list[Any] = [None, {}, ()]
        required = ("clients", "weights")
        shortened = {key: _shorten(value) for key, value in line.items() if key in required or value not in empty}
        defaults = [("defended", True), ("lost", False)]
        return {key: value for key, value in shortened.items() if (key, value) not in defaults}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> RoundRecord:
        known = {f.name for f in fields(cls)}
        given = {key: _freeze(value) for key, value in line.items() if key in known}
        if given.get("malicious") is not None:
            given["malicious"] = tuple(map(bool, given["malicious"]))
        record = cls(**given)
        if type(record.round) is not int or len(record.clients) != len(record.weights):
            raise TypeError(f"it needs a whole number and as many weights as clients, got round {record.round!r:.40}")
        return record


@dataclass(frozen=True)
class RunRecord:
    """A whole run as read back from disk."""

    header: Mapping[str, Any]  # keys: experiment, versions, device, split (samples per client and class) …
    rounds: tuple[RoundRecord, ...]
    summary: Mapping[str, Any] | None = None  # None: the run is not finished

    @property
    def label(self) -> str:
        """How the run is called in tables and figures: its defense."""
        return str(self.header.get("defense", "run"))

    @property
    def experiment(self) -> str:
        """The name of the experiment it belongs to; empty where the records do not say."""
        return str((self.header.get("experiment") or {}).get("name", ""))

    @property
    def thinned(self) -> bool:
        """Whether rounds or scores were left out: what needs them all then stands in the summary alone."""
        return bool(self.header.get("thinned"))

    @property
    def n_rounds(self) -> int:
        """How many rounds there were, whether or not they are all kept."""
        return self.rounds[-1].round + 1 if self.thinned and self.rounds else len(self.rounds)


class NotARun(ValueError):
    """A path that holds no readable records."""


class DamagedRecords(RuntimeError):
    """Records that are not as they were written, or that do not fit the checkpoint beside them."""


RECORDS = "records.jsonl"


def list_record_files(folder: Path) -> list[Path]:
    """The files that hold the records of a run, in order. Empty: there are none."""
    later = sorted(folder.glob("records-[0-9][0-9][0-9][0-9].jsonl"))
    return [path for path in (folder / RECORDS, *later) if path.is_file()]


def name_record_file(number: int) -> str:
    """The files after the first are numbered."""
    return f"records-{number:04}.jsonl" if number else RECORDS


def read_run(path: Path) -> RunRecord:
    """Read the records of a folder, or of one file. An incomplete last line, left by a crash, is ignored."""
    path = path / RECORDS if path.is_dir() else path
    if not path.is_file():
        raise NotARun(f"{path} does not exist; a run's folder holds {RECORDS}")
    lines = complete_lines(path)
    if not lines or not isinstance(lines[0].get("experiment"), dict):
        raise NotARun(f"{path} has no header line; it was not written by cosdefense")
    try:
        rounds = tuple(RoundRecord.from_json(line) for line in lines[1:] if "round" in line)
    except TypeError as error:
        raise NotARun(f"{path} holds a round that cannot be read: {error}") from error
    summary = None
    for line in lines:
        summary = None if "resumed" in line else line.get("summary", summary)
    return RunRecord(lines[0], rounds, summary)


def complete_lines(path: Path) -> list[dict[str, Any]]:
    """All lines that were written whole, up to the first that was not. `records.jsonl` has those of later files too."""
    lines: list[dict[str, Any]] = []
    for number, file in enumerate(list_record_files(path.parent) if path.name == RECORDS else [path]):
        if path.name == RECORDS and file.name != (expected := name_record_file(number)):
            raise NotARun(f"{path.parent} lacks {expected}, but {file.name} is there")
        for text in file.read_bytes().split(b"\n"):
            if not text:
                continue
            line = parse_line(text)
            if line is None:
                return lines  # a crash tears only the last line
            lines.append(line)
    return lines


def _known(score: float) -> float | None:
    return None if math.isnan(score) else score


def _pair(point: Sequence[float]) -> tuple[float, float] | None:
    x, y = point
    return None if math.isnan(x) else (x, y)


def _shorten(value: Any) -> Any:
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if math.isinf(value):  # JSON knows no infinity
            return math.copysign(sys.float_info.max, value)
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _shorten(item) for key, item in value.items()}
    return [_shorten(item) for item in value]


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    if isinstance(value, dict):
        return {key: _freeze(item) for key, item in value.items()}
    return value
