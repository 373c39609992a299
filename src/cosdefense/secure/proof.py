"""A proof of sums of squares of secret numbers, which two servers check on their halves.

The numbers are arranged in rows ("calls" of the squaring circuit). For every column there is a polynomial through its
entries, with a random value at 0; the proof is the sum of the squares of these polynomials, by its values at 0 … 2G.
Its value at g is the sum of squares of row g. Both are linear in the numbers and the proof, so each server evaluates
its half at one random point, and the two compare the sums.

Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai. Zero-Knowledge Proofs on Secret-Shared Data via Fully Linear PCPs.
CRYPTO 2019. https://eprint.iacr.org/2019/188
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import count

from .streams import digest, stream

P = 2**521 - 1  # a Mersenne prime, far above every number that the formats of a report can produce
ELEMENT = 66  # bytes of an element

Rows = Sequence[Sequence[int]]


def draw_elements(key: bytes, label: str, n: int) -> list[int]:
    """Elements that the key decides, uniform up to 2**−521."""
    data = stream(key, label, ELEMENT * n)
    return [(int.from_bytes(data[i : i + ELEMENT], "little") & P) % P for i in range(0, len(data), ELEMENT)]


def draw_point(transcript: bytes, largest: int) -> int:
    """The point at which a report's polynomials are compared: decided by the report, and none of 0 … `largest`."""
    for attempt in count():
        (point,) = draw_elements(digest("query", transcript), f"point {attempt}", 1)
        if point > largest:
            return point
    raise AssertionError("unreachable")


def prove(rows: Rows, blinding: Sequence[int]) -> list[int]:
    """The values at 0 … 2G of the sum of squared column polynomials; at 0 it is that of the blinding."""
    values = [sum(v * v for v in row) % P for row in (blinding, *rows)]
    columns = list(zip(blinding, *rows, strict=True))
    for weights in _extension(len(rows)):
        values.append(sum((sum(map(int.__mul__, weights, column)) % P) ** 2 for column in columns) % P)
    return values


def evaluate(rows: Rows, blinding: Sequence[int], proof: Sequence[int], point: int) -> list[int]:
    """The column polynomials at the point, then the proof's. On halves: halves of these."""
    weights = _lagrange(len(rows), point)
    columns = [sum(map(int.__mul__, weights, column)) % P for column in zip(blinding, *rows, strict=True)]
    return [*columns, sum(map(int.__mul__, _lagrange(len(proof) - 1, point), proof)) % P]


def is_consistent(values: Sequence[int]) -> bool:
    """Whether the proof's value is the sum of squares of the columns' values."""
    *columns, value = values
    return sum(v * v for v in columns) % P == value % P


@cache
def _extension(degree: int) -> list[list[int]]:
    """For degree + 1 … 2 · degree: the weights of a polynomial's values at 0 … degree."""
    return [
        [(-1) ** (degree - i) * math.comb(t, i) * math.comb(t - i - 1, degree - i) for i in range(degree + 1)]
        for t in range(degree + 1, 2 * degree + 1)
    ]


@lru_cache(maxsize=64)  # the two servers of a simulation ask for the same points
def _lagrange(degree: int, point: int) -> list[int]:
    """The weights of a polynomial's values at 0 … degree in its value at the point."""
    before, after = [1], [1]
    for i in range(degree):
        before.append(before[-1] * (point - i) % P)
        after.append(after[-1] * (point - (degree - i)) % P)
    inverses = _inverse_denominators(degree)
    return [before[i] * after[degree - i] * inverses[i] % P for i in range(degree + 1)]


@cache
def _inverse_denominators(degree: int) -> list[int]:
    return [
        pow((-1) ** (degree - i) * math.factorial(i) * math.factorial(degree - i), -1, P) for i in range(degree + 1)
    ]
