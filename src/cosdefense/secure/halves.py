"""One party's numbers of a report: how they are arranged for the proof, and what a server computes from its half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import numpy as np

from .proof import ELEMENT, P, Rows, draw_elements, draw_point, evaluate, is_consistent
from .ring import Words
from .sketch import sketch
from .statements import Claim, Squares, residuals, statements
from .streams import KEY, digest, stream
from .terms import Terms

NUMBER, SLACK = 16, 24  # bytes of a half of a head's or sketch's number, and of a half of a slack's root
ROOTS = 3  # roots of a slack


@dataclass(frozen=True, repr=False)
class Numbers:
    """The integers that a proof is about, whole or one half of them."""

    head: Sequence[int]
    weights: Sequence[int]  # the sketch of the weights
    buffers: Sequence[int]  # the sketch of the buffers
    roots: Sequence[Sequence[int]]  # three for each statement


@dataclass(frozen=True)
class Shape:
    """How many numbers of each kind there are, and how they are arranged in rows for the proof."""

    head: int
    weights: int
    buffers: int
    statements: int

    @classmethod
    def of(cls, terms: Terms, *, with_cosine: bool) -> Shape:
        """Without a cosine (a global head of zeros) two statements are left out."""
        return _shape_of(terms, with_cosine)

    @cached_property
    def columns(self) -> int:
        total = self.head + self.weights + self.buffers + ROOTS * self.statements + 1
        return max(ROOTS, -(-self.head // 32), min(64, -(-total // 8)))

    @cached_property
    def _rows(self) -> tuple[int, int, int]:
        return tuple(-(-n // self.columns) for n in (self.head, self.weights, self.buffers))  # type: ignore[return-value]

    @cached_property
    def n_rows(self) -> int:
        return sum(self._rows) + self.statements + 1

    @property
    def proof(self) -> int:
        """Elements of a proof."""
        return 2 * self.n_rows + 1

    @property
    def answers(self) -> int:
        """Elements that each server sends the other."""
        return self.columns + 1 + self.statements

    @property
    def rest_bytes(self) -> int:
        """Bytes of the leader's half, without the words."""
        numbers = NUMBER * (self.head + self.weights + self.buffers)
        return KEY + numbers + SLACK * ROOTS * self.statements + ELEMENT * self.proof

    def arrange(self, numbers: Numbers, theta: Sequence[int]) -> Rows:
        """Rows of equal length: head, sketches, one row for each slack, one for the product of head and update."""
        rows = [row for part in (numbers.head, numbers.weights, numbers.buffers) for row in self._split(part)]
        product = sum(map(int.__mul__, theta, numbers.head))
        return [*rows, *(self._pad(roots) for roots in numbers.roots), self._pad([product])]

    def squares(self, proof: Sequence[int]) -> Squares:
        """The sums of squares that a proof's values show. On halves: halves of them."""
        head, weights, buffers = self._rows
        ends = (1, 1 + head, 1 + head + weights, 1 + head + weights + buffers)
        sums = [sum(proof[a:b]) for a, b in pairwise(ends)]
        slacks = tuple(proof[ends[-1] : ends[-1] + self.statements])
        return Squares(sums[0], proof[self.n_rows], sums[1], sums[2], slacks)

    def _split(self, values: Sequence[int]) -> list[list[int]]:
        return [self._pad(values[i : i + self.columns]) for i in range(0, len(values), self.columns)]

    def _pad(self, values: Sequence[int]) -> list[int]:
        return [*values, *[0] * (self.columns - len(values))]


@lru_cache(maxsize=4)  # every report of a round asks for it
def _shape_of(terms: Terms, with_cosine: bool) -> Shape:
    weights, buffers = terms.sketches
    n = 2 * with_cosine + 1 + (terms.buffers > 0)  # cosine, length, length of buffers
    return Shape(terms.head, weights, buffers, n)


@dataclass(frozen=True, repr=False)
class Half:
    """A server's half of a report: its words, numbers, blinding and proof."""

    words: Words
    numbers: Numbers
    blinding: Sequence[int]
    proof: Sequence[int]


@dataclass(frozen=True, repr=False)
class Answers:
    """What the servers exchange about a report: halves of evaluations and statements, and a digest of the sketches."""

    elements: Sequence[int]
    residue: bytes

    def agree_with(self, other: Answers, shape: Shape) -> bool:
        """Whether the report is valid."""
        if self.residue != other.residue:
            return False
        sums = [(a + b) % P for a, b in zip(self.elements, other.elements, strict=True)]
        split = shape.columns + 1
        return is_consistent(sums[:split]) and not any(sums[split:])


def expand_half(seed: bytes, shape: Shape, terms: Terms) -> Half:
    """The helper's half, all of which comes from its seed."""
    counts = (shape.head, shape.weights, shape.buffers)
    n_numbers, n_roots = NUMBER * sum(counts), SLACK * ROOTS * shape.statements
    data = stream(seed, "numbers", n_numbers + n_roots)
    values, ends = read_integers(data[:n_numbers], NUMBER), (0, *accumulate(counts))
    parts = [values[a:b] for a, b in pairwise(ends)]
    numbers = Numbers(parts[0], parts[1], parts[2], split_roots(read_integers(data[n_numbers:], SLACK)))
    proof = draw_elements(seed, "proof", shape.proof)
    return Half(terms.ring.draw(seed, terms.words), numbers, draw_blinding(seed, shape), proof)


def expand_head(seed: bytes, terms: Terms) -> list[int]:
    """The helper's half of the head alone: the first of its numbers."""
    return read_integers(stream(seed, "numbers", NUMBER * terms.head), NUMBER)


def draw_blinding(seed: bytes, shape: Shape) -> list[int]:
    return draw_elements(seed, "blinding", shape.columns)


@dataclass(frozen=True)
class ReportKeys:
    """The digests that bind a report, and the challenges that follow from them."""

    header: bytes  # of ticket and node
    words: bytes  # of the leader's words
    seed: bytes  # of the helper's seed

    def sketch_key(self, part: str) -> bytes:
        """Whoever changes a word or the seed changes all coefficients."""
        return digest(f"sketch {part}", self.header, self.words, self.seed)

    def transcript(self, claimed: Claim, rest: bytes) -> bytes:
        return digest("report", self.header, claimed.to_bytes(), self.words, rest, self.seed)


def answer(
    half: Half, keys: ReportKeys, claimed: Claim, transcript: bytes, theta: Sequence[int], terms: Terms, *, leader: bool
) -> Answers:
    """A server's half of the check of a report."""
    shape = Shape.of(terms, with_cosine=any(theta))
    point = draw_point(transcript, 2 * shape.n_rows)
    values = evaluate(shape.arrange(half.numbers, theta), half.blinding, half.proof, point)
    values += residuals(statements(claimed, theta, terms), shape.squares(half.proof), with_constants=leader)
    return Answers(values, _residue(half, keys, transcript, terms, negate=not leader))


def _residue(half: Half, keys: ReportKeys, transcript: bytes, terms: Terms, *, negate: bool) -> bytes:
    """A digest of how far the claimed sketches are from those of the words; the two servers' add up to zero."""
    ring, parts = terms.ring, []
    weights, buffers = half.words[: terms.weights], half.words[terms.weights :]
    for name, words, claimed in (
        ("weights", weights, half.numbers.weights),
        ("buffers", buffers, half.numbers.buffers),
    ):
        if claimed:
            own = ring.to_signed(sketch(words, keys.sketch_key(name), ring))
            wanted = np.array([(value & ring.mask) for value in claimed], np.uint64).astype(np.int64)
            parts.append(ring.to_bytes(ring.from_signed((wanted - own) if negate else (own - wanted))))
    return digest("residue", transcript, *parts)


def read_integers(data: bytes, width: int) -> list[int]:
    """Integers in two's complement."""
    return [int.from_bytes(data[i : i + width], "little", signed=True) for i in range(0, len(data), width)]


def split_roots(values: Sequence[int]) -> list[list[int]]:
    return [list(values[i : i + ROOTS]) for i in range(0, len(values), ROOTS)]
