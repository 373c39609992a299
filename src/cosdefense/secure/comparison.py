"""The messages between leader and helper where updates are compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from .exchange import Outcome, read_outcome
from .messages import Malformed, Reader, number
from .projection import RING, SIZE
from .ring import Words
from .streams import KEY
from .terms import MAX_CLIENTS, MAX_REFERENCES

VOTE = 1 << 16  # the weight of an update that counts in full


@dataclass(frozen=True, repr=False)
class Projected:
    """What became of the reports, how valid ones are projected, and the helper's half of projections minus mask."""

    number: int
    outcomes: tuple[Outcome, ...]
    key: bytes  # of the projection
    deal: bytes  # of the triple
    triple: int
    masked: Words  # one row for each valid report

    def to_bytes(self) -> bytes:
        outcomes = number(len(self.outcomes)) + bytes(self.outcomes)
        return number(self.number) + outcomes + self.key + self.deal + number(self.triple) + _matrix(self.masked)

    @classmethod
    def from_bytes(cls, data: bytes) -> Projected:
        reader = Reader(data, "projections")
        n, outcomes = reader.number(), tuple(reader.many(read_outcome, MAX_CLIENTS))
        key, deal, triple = reader.take(KEY), reader.take(KEY), reader.number()
        masked = _read_matrix(reader, SIZE, MAX_CLIENTS)
        reader.end()
        if len(masked) != outcomes.count(Outcome.VALID):
            raise Malformed(f"projections need a row for each valid report, got {len(masked)}")
        return cls(n, outcomes, key, deal, triple, masked)


@dataclass(frozen=True, repr=False)
class Masked:
    """The leader's half of projections minus mask, and the projections of the public vectors."""

    number: int
    masked: Words
    references: Words

    def to_bytes(self) -> bytes:
        return number(self.number) + _matrix(self.masked) + _matrix(self.references)

    @classmethod
    def from_bytes(cls, data: bytes) -> Masked:
        reader = Reader(data, "masked projections")
        found = cls(
            reader.number(), _read_matrix(reader, SIZE, MAX_CLIENTS), _read_matrix(reader, SIZE, MAX_REFERENCES)
        )
        reader.end()
        return found


@dataclass(frozen=True, repr=False)
class Products:
    """The helper's half of the inner products: of clients with clients, and with the public vectors."""

    number: int
    clients: Words
    references: Words

    def to_bytes(self) -> bytes:
        return number(self.number) + _matrix(self.clients) + RING.to_bytes(self.references.reshape(-1))

    @classmethod
    def from_bytes(cls, data: bytes, n: int, references: int) -> Products:
        """Read the products of `n` clients."""
        reader = Reader(data, "products")
        found = cls(
            reader.number(),
            _read_matrix(reader, n, n),
            RING.from_bytes(reader.take(8 * n * references)).reshape(n, references),
        )
        reader.end()
        if len(found.clients) != n:
            raise Malformed(f"products need {n} rows, got {len(found.clients)}")
        return found


@dataclass(frozen=True, repr=False)
class Weights:
    """How much each report counts in the sum, as the leader decided. 0: rejected."""

    number: int
    weights: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return number(self.number) + number(len(self.weights)) + b"".join(map(number, self.weights))

    @classmethod
    def from_bytes(cls, data: bytes) -> Weights:
        reader = Reader(data, "weights")
        found = cls(reader.number(), tuple(reader.many(Reader.number, MAX_CLIENTS)))
        reader.end()
        return found


def _matrix(words: Words) -> bytes:
    return number(len(words)) + RING.to_bytes(words.reshape(-1))


def _read_matrix(reader: Reader, columns: int, most: int) -> Words:
    rows = reader.number()
    if rows > most:
        raise Malformed(f"a matrix of {rows} rows; at most {most} are allowed")
    return RING.from_bytes(reader.take(8 * rows * columns)).reshape(rows, columns)
