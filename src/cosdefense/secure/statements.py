"""What a report claims, and the inequalities that say that the claims are true.

All quantities are sums of squares of secret integers, so an inequality is linear in what the proof shows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .encoding import HEAD_RANGE, Encoded
from .proof import P
from .ring import Signed
from .sketch import SKETCH
from .terms import HEAD_BITS, MAX_LENGTH, STEPS, TOLERANCE, Terms

CLAIM = 16  # bytes of a claim
COSINE_BITS = 24  # fraction bits of a claimed cosine
ONE = 1 << COSINE_BITS
HEAD_LIMIT = int(HEAD_RANGE) << HEAD_BITS  # the largest coordinate of an encoded head


@dataclass(frozen=True)
class Claim:
    """What a client says about its update. Opened to both servers.

    Args:
        cosine: ⌊2²⁴ · |cos(head's update, head)|⌋.
        length: The norm of the trainable part in units of clip / 256, rounded up; 0 where lengths stay secret.
    """

    cosine: int
    length: int = 0

    def to_bytes(self) -> bytes:
        return struct.pack("<QQ", self.cosine, self.length)

    def is_possible(self, terms: Terms) -> bool:
        """Whether the numbers are in the ranges that the statements cover."""
        lengths = (0, 0) if terms.norm_limit is None else (1, MAX_LENGTH)
        return 0 <= self.cosine <= ONE and lengths[0] <= self.length <= lengths[1]


@dataclass(frozen=True)
class Squares:
    """Sums of squares: of the head, of ⟨head's update, head⟩, of the sketches, and of each statement's slack."""

    head: int
    product: int
    weights: int
    buffers: int
    slacks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Inequality:
    """constant + head · N_head + product · N_product + … ≥ 0, proven as 4 · (…) + 1 = a sum of three squares."""

    constant: int
    head: int = 0
    product: int = 0
    weights: int = 0
    buffers: int = 0

    def linear_part(self, squares: Squares) -> int:
        return (
            self.head * squares.head
            + self.product * squares.product
            + self.weights * squares.weights
            + self.buffers * squares.buffers
        )


def claim(encoded: Encoded, theta: Sequence[int], terms: Terms) -> Claim:
    """The true claim of an update."""
    head = encoded.head.tolist()
    square, theta_square = sum(v * v for v in head), sum(v * v for v in theta)
    product = sum(map(int.__mul__, head, theta))
    cosine = math.isqrt((product**2 << 2 * COSINE_BITS) // (square * theta_square)) if theta_square else 0
    if terms.norm_limit is None:
        return Claim(cosine)
    words = terms.ring.to_signed(encoded.words[: terms.weights])
    total = square + (_sum_squares(words) << 2 * (HEAD_BITS - terms.fraction))
    length = math.isqrt(max(0, total - 1) // terms.length_unit) + 1
    return Claim(cosine, length)


def statements(claimed: Claim, theta: Sequence[int], terms: Terms) -> list[Inequality]:
    """The inequalities that hold exactly if the claim is true (lengths: as far as the sketches tell)."""
    found, theta_square = [], sum(v * v for v in theta)
    if theta_square:  # otherwise there is no cosine, and everybody is accepted
        q, one = claimed.cosine, 1 << 2 * COSINE_BITS
        found.append(Inequality(0, head=-(q**2) * theta_square, product=one))
        found.append(Inequality(-1, head=(q + 1) ** 2 * theta_square, product=-one))
    if terms.clip is not None:
        # 4 / SKETCH of a sketch's sum of squares estimates the squared length; the head enters exactly.
        steps = STEPS if terms.norm_limit is None else claimed.length
        limit = SKETCH * math.floor(TOLERANCE**2 * steps**2 * terms.length_unit)
        found.append(Inequality(limit, head=-SKETCH, weights=-4 << 2 * (HEAD_BITS - terms.fraction)))
    else:
        # The format of halves alone would allow heads of 2⁸⁷.
        found.append(Inequality(terms.head * HEAD_LIMIT**2, head=-1))
    if terms.buffers:
        limit = SKETCH * math.floor(
            (TOLERANCE * Fraction(terms.buffer_clip)) ** 2 * terms.buffers * 4**terms.buffer_fraction
        )
        found.append(Inequality(limit, buffers=-4))
    return found


def residuals(found: Sequence[Inequality], squares: Squares, *, with_constants: bool) -> list[int]:
    """What must be zero for each statement. On halves: halves of it; one server adds the constants."""
    values = []
    for statement, slack in zip(found, squares.slacks, strict=True):
        value = 4 * statement.linear_part(squares) - slack
        values.append((value + (4 * statement.constant + 1 if with_constants else 0)) % P)
    return values


def _sum_squares(values: Signed) -> int:
    """The exact sum of squares of integers below 2**39: in pieces, and in two parts, so that nothing overflows."""
    total = 0
    for start in range(0, len(values), 1 << 20):
        high, low = np.divmod(values[start : start + (1 << 20)], 1 << 20)
        products = int(np.dot(high, high)), int(np.dot(high, low)), int(np.dot(low, low))
        total += (products[0] << 40) + (products[1] << 21) + products[2]
    return total
