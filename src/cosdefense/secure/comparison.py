"""The messages between leader and helper where updates are compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from .exchange import Outcome, read_outcome
from .messages import Malformed, Reader, number
from .projection import RING, SIZE
from .ring import Words
from .secret_mean import Lesson
from .streams import KEY
from .terms import MAX_CLIENTS, MAX_REFERENCES, MEAN_ROWS

VOTE = 1 << 16  # the weight of an update that counts in full


@dataclass(frozen=True, repr=False)
class Projected:
    """What became of the reports, how valid ones are projected, and the helper's half of projections minus mask."""

    number: int
    outcomes: tuple[Outcome, ...]
    key: bytes  # of the projection
    deal: bytes  # of the triple
    triple: int
    masked: Words  # one row for each valid report, then those of the running mean
    mean: int = 0  # the running mean that the helper has a half of, by its round; 0: none

    def to_bytes(self) -> bytes:
        outcomes = number(len(self.outcomes)) + bytes(self.outcomes)
        used = self.key + self.deal + number(self.triple) + number(self.mean)
        return number(self.number) + outcomes + used + _matrix(self.masked)

    @classmethod
    def from_bytes(cls, data: bytes) -> Projected:
        reader = Reader(data, "projections")
        n, outcomes = reader.number(), tuple(reader.many(read_outcome, MAX_CLIENTS))
        key, deal, triple, mean = reader.take(KEY), reader.take(KEY), reader.number(), reader.number()
        masked = _read_matrix(reader, SIZE, MAX_CLIENTS + MEAN_ROWS)
        reader.end()
        if len(masked) != outcomes.count(Outcome.VALID) + MEAN_ROWS * (mean > 0):
            raise Malformed(f"projections need a row for each valid report, got {len(masked)}")
        return cls(n, outcomes, key, deal, triple, masked, mean)


@dataclass(frozen=True, repr=False)
class Masked:
    """The leader's half of projections minus mask, and the projections of the public vectors."""

    number: int
    masked: Words
    references: Words
    mean: bool = False  # whether the last rows are those of the running mean

    @property
    def n_clients(self) -> int:
        return len(self.masked) - MEAN_ROWS * self.mean

    def to_bytes(self) -> bytes:
        return number(self.number) + number(self.mean) + _matrix(self.masked) + _matrix(self.references)

    @classmethod
    def from_bytes(cls, data: bytes) -> Masked:
        reader = Reader(data, "masked projections")
        n, mean = reader.number(), reader.number()
        masked = _read_matrix(reader, SIZE, MAX_CLIENTS + MEAN_ROWS)
        references = _read_matrix(reader, SIZE, MAX_REFERENCES)
        reader.end()
        if mean > 1 or len(masked) < MEAN_ROWS * mean:
            raise Malformed(f"masked projections have no {mean} running means")
        return cls(n, masked, references, bool(mean))


@dataclass(frozen=True, repr=False)
class Products:
    """The helper's half of the inner products: of all rows with each other, and of clients with the public vectors."""

    number: int
    clients: Words
    references: Words

    def to_bytes(self) -> bytes:
        return number(self.number) + _matrix(self.clients) + RING.to_bytes(self.references.reshape(-1))

    @classmethod
    def from_bytes(cls, data: bytes, n: int, references: int, mean: bool = False) -> Products:
        """Read the products of `n` clients, and of the running mean if there is one."""
        reader = Reader(data, "products")
        found = cls(
            reader.number(),
            _read_matrix(reader, n + MEAN_ROWS * mean, n + MEAN_ROWS * mean),
            RING.from_bytes(reader.take(8 * n * references)).reshape(n, references),
        )
        reader.end()
        if len(found.clients) != n + MEAN_ROWS * mean:
            raise Malformed(f"products need {n + MEAN_ROWS * mean} rows, got {len(found.clients)}")
        return found


@dataclass(frozen=True, repr=False)
class Weights:
    """How much each report counts in the sum, as the leader decided; 0: rejected. And what the running mean learns."""

    number: int
    weights: tuple[int, ...]
    lesson: Lesson | None = None

    def to_bytes(self) -> bytes:
        lesson = number(0) if self.lesson is None else number(1) + self.lesson.to_bytes()
        return number(self.number) + number(len(self.weights)) + b"".join(map(number, self.weights)) + lesson

    @classmethod
    def from_bytes(cls, data: bytes) -> Weights:
        reader = Reader(data, "weights")
        n, weights, learns = reader.number(), tuple(reader.many(Reader.number, MAX_CLIENTS)), reader.number()
        if learns > 1:
            raise Malformed(f"weights with {learns} lessons")
        found = cls(n, weights, Lesson.read(reader) if learns else None)
        reader.end()
        return found


def _matrix(words: Words) -> bytes:
    return number(len(words)) + RING.to_bytes(words.reshape(-1))


def _read_matrix(reader: Reader, columns: int, most: int) -> Words:
    rows = reader.number()
    if rows > most:
        raise Malformed(f"a matrix of {rows} rows; at most {most} are allowed")
    return RING.from_bytes(reader.take(8 * rows * columns)).reshape(rows, columns)
