"""The messages between leader and helper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from .encoding import encode_public_head
from .halves import Answers, Shape
from .messages import Malformed, Reader, elements, number, sized
from .proof import ELEMENT
from .report import SealedReport
from .ring import Words
from .streams import KEY
from .terms import MAX_CLIENTS, Terms
from .ticket import NOTHING

TOTAL = 20  # bytes of a number in a sum of heads: halves of 128 bits, times weights of 8 bits, from 1,000 clients


class Outcome(IntEnum):
    """What became of a report. Anything but `VALID` costs its client the round."""

    VALID = 0
    MALFORMED = 1  # wrong sizes, or numbers outside their ranges
    UNKNOWN_NODE = 2  # not in the helper's roster
    REPEATED_NODE = 3
    UNSIGNED = 4  # the signature does not cover this report, this ticket
    UNSEALED = 5  # the helper's seed cannot be decrypted, or is not the one that was announced
    UNPROVEN = 6  # the claim does not follow from the halves
    MISSING = 7  # the leader sent no answers


@dataclass(frozen=True, repr=False)
class TicketRequest:
    """What the leader asks a ticket for."""

    terms: Terms
    head: bytes  # the global head, float64
    rest: bytes  # digest of the other tensors of the model
    others: bytes = NOTHING  # digest of what else clients are sent
    mean: int = 0  # the round after which the running mean was what the leader has of it; 0: there is none

    @cached_property
    def theta(self) -> list[int]:
        """The global head as integers."""
        return encode_public_head(np.frombuffer(self.head, "<f8"))

    @property
    def shape(self) -> Shape:
        """The form of reports and answers."""
        return Shape.of(self.terms, with_cosine=any(self.theta))

    def to_bytes(self) -> bytes:
        return sized(self.terms.to_json().encode()) + sized(self.head) + self.rest + self.others + number(self.mean)

    @classmethod
    def from_bytes(cls, data: bytes) -> TicketRequest:
        reader = Reader(data, "request for a ticket")
        terms = Terms.from_json(reader.text())
        request = cls(terms, reader.sized(), reader.take(KEY), reader.take(KEY), reader.number())
        reader.end()
        return request


@dataclass(frozen=True, repr=False)
class Reports:
    """All reports of a round, as the helper gets them."""

    number: int
    reports: tuple[SealedReport, ...]

    def to_bytes(self) -> bytes:
        return number(self.number) + number(len(self.reports)) + b"".join(r.to_bytes() for r in self.reports)

    @classmethod
    def from_bytes(cls, data: bytes) -> Reports:
        reader = Reader(data, "reports")
        found = cls(reader.number(), tuple(reader.many(SealedReport.read, MAX_CLIENTS)))
        reader.end()
        return found


@dataclass(frozen=True, repr=False)
class Checks:
    """A server's answers for each report, in order. None: it has none, for the reason given."""

    number: int
    outcomes: tuple[Outcome, ...]
    answers: tuple[Answers | None, ...]

    def to_bytes(self) -> bytes:
        pieces = [number(self.number), number(len(self.answers))]
        for outcome, found in zip(self.outcomes, self.answers, strict=True):
            pieces.append(bytes([outcome]) + (b"" if found is None else elements(found.elements) + found.residue))
        return b"".join(pieces)

    @classmethod
    def from_bytes(cls, data: bytes, shape: Shape) -> Checks:
        reader = Reader(data, "answers")
        n = reader.number()
        entries = reader.many(lambda r: _read_answers(r, shape), MAX_CLIENTS)
        reader.end()
        return cls(n, tuple(outcome for outcome, _ in entries), tuple(found for _, found in entries))

    @staticmethod
    def count_bytes(shape: Shape) -> int:
        """The bytes of the answers for one report, at most."""
        return 1 + ELEMENT * shape.answers + KEY


def read_outcome(reader: Reader) -> Outcome:
    code = reader.take(1)[0]
    if code >= len(Outcome):
        raise Malformed(f"{code} is no outcome of a report")
    return Outcome(code)


def _read_answers(reader: Reader, shape: Shape) -> tuple[Outcome, Answers | None]:
    outcome = read_outcome(reader)
    if outcome != Outcome.VALID:
        return outcome, None
    return outcome, Answers(reader.elements(shape.answers), reader.take(KEY))


@dataclass(frozen=True, repr=False)
class Settled:
    """The helper's verdict, and its half of the sum over the accepted. No half: the sum must not be opened."""

    number: int
    outcomes: tuple[Outcome, ...]
    weights: tuple[int, ...]
    refused: str | None
    head: Sequence[int] = ()
    words: Words | None = None

    def to_bytes(self, terms: Terms) -> bytes:
        verdicts = b"".join(
            bytes([outcome]) + number(weight) for outcome, weight in zip(self.outcomes, self.weights, strict=True)
        )
        start = number(self.number) + number(len(self.outcomes)) + verdicts + sized((self.refused or "").encode())
        if self.words is None:
            return start
        head = b"".join(value.to_bytes(TOTAL, "little", signed=True) for value in self.head)
        return start + head + terms.ring.to_bytes(self.words)

    @classmethod
    def from_bytes(cls, data: bytes, terms: Terms) -> Settled:
        reader = Reader(data, "settlement")
        n = reader.number()
        verdicts = reader.many(lambda r: (read_outcome(r), r.number()), MAX_CLIENTS)
        outcomes, weights = tuple(outcome for outcome, _ in verdicts), tuple(weight for _, weight in verdicts)
        refused = reader.text()
        if refused:
            reader.end()
            return cls(n, outcomes, weights, refused)
        head = [int.from_bytes(reader.take(TOTAL), "little", signed=True) for _ in range(terms.head)]
        words = terms.ring.from_bytes(reader.take(terms.ring.width * terms.words))
        reader.end()
        return cls(n, outcomes, weights, None, head, words)
