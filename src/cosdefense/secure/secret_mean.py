"""A running mean of secret updates that nobody sees: each server keeps a half of it, and changes it by itself.

A fixed-point mean · kept + new · (1 − kept) would grow by the bits of `kept` in every round, and truncating two halves
is off by one at random, so that no twin could repeat it. A cosine does not depend on lengths, so nothing is multiplied
by `kept`: the newer a round is, the more its updates are multiplied by, in exact integers. When these reach the limit
of the ring, a second sum takes over that began `STEP` times lower. It has the same shares, except for rounds that count
1 / `STEP` of the total by then.

The sum is too long for products modulo 2**64, so three rows beside it are the sum divided by 2**`SPLIT`, where each
server rounds its half. A rounded product says the upper bits, the product of the sum itself the lower 64, and both
together are exact. Rounding fails for a number x with the probability |x| / 2**64, where its two halves wrap: hence
three, of which two must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .messages import Malformed, Reader, number
from .projection import RING, SIZE, project
from .ring import Signed, Words
from .streams import stream
from .terms import MAX_CLIENTS, MEAN_ROWS

MOST = 2.0**43  # the most that the integers of all rounds may add up to; the norm of the sum is at most that
STEP = 2.0**7  # how much lower the second sum is
SPLIT = 12  # bits that are rounded away: MOST / 2**SPLIT is as long as the longest update, see `Terms.fraction`
COPIES = MEAN_ROWS - 1
SUMS = 2


@dataclass(frozen=True)
class Lesson:
    """How both servers change their halves after a round.

    Args:
        restart: Whether the sums are forgotten first.
        shifts: How often the second sum takes over first.
        factors: What each report is multiplied by, for both sums; 0 for reports that are not valid.
    """

    restart: bool
    shifts: int
    factors: tuple[tuple[int, ...], tuple[int, ...]]

    def spread(self, where: Sequence[int], n: int) -> Lesson:
        """For all `n` reports, given the positions of the valid ones."""
        every = [[0] * n for _ in self.factors]
        for row, factors in zip(every, self.factors, strict=True):
            for i, factor in zip(where, factors, strict=True):
                row[i] = factor
        return Lesson(self.restart, self.shifts, (tuple(every[0]), tuple(every[1])))

    def to_bytes(self) -> bytes:
        first, second = self.factors
        return number(self.restart) + number(self.shifts) + number(len(first)) + b"".join(map(number, first + second))

    @classmethod
    def read(cls, reader: Reader) -> Lesson:
        restart, shifts, n = reader.number(), reader.number(), reader.number()
        if restart > 1 or shifts > SUMS or n > MAX_CLIENTS:
            raise Malformed(f"a running mean that restarts {restart} times, shifts {shifts} times, learns {n} reports")
        first, second = (tuple(reader.number() for _ in range(n)) for _ in range(SUMS))
        return cls(bool(restart), shifts, (first, second))


def plan_lesson(
    total: float, shares: Sequence[float], kept: float, fraction: int, *, exists: bool
) -> tuple[Lesson, float]:
    """The lesson that keeps so much of the mean, and what all integers then add up to.

    Args:
        total: What they add up to so far.
        shares: What the updates are multiplied by in the mean of this round; with them it has the norm 1 or less.
        kept: How much of the running mean is kept.
        fraction: Fraction bits of the updates.
        exists: Whether there is a running mean.
    """
    restart, shifts = not exists or kept * MOST <= STEP, 0
    if restart:
        total, new = MOST / STEP, MOST / STEP
    else:
        total, new = total / kept, total / kept - total
        while total > MOST:
            total, new, shifts = total / STEP, new / STEP, shifts + 1
    scaled = np.asarray(shares, np.float64) * new * 2.0**-fraction
    return Lesson(restart, min(shifts, SUMS), (_round(scaled), _round(scaled / STEP))), total


def _round(values: np.ndarray) -> tuple[int, ...]:
    """Whole numbers whose sum is right, too. Many clients that count less than 1/2 each would be nothing otherwise."""
    return tuple(int(v) for v in np.diff(np.rint(np.cumsum(values)), prepend=0.0))


def learn(halves: Words | None, lesson: Lesson, rows: Iterable[Words | None], size: int) -> Words:
    """A server's halves of both sums after a round. `rows`: its halves of the reports, None for invalid ones."""
    found = np.zeros((SUMS, size), np.uint64)
    if halves is not None and not lesson.restart:
        found[: SUMS - lesson.shifts] = halves[lesson.shifts :]
    for i, row in enumerate(rows):
        for j in range(SUMS):
            factor = lesson.factors[j][i]
            if factor and row is not None:
                found[j] += row[:size] * np.uint64(factor)
    return found


def project_mean(halves: Words, key: bytes, *, leader: bool) -> Words:
    """A server's half of the rows that stand for the mean: projected, and rounded three times."""
    whole = project(halves[0], key)
    noise = RING.from_bytes(stream(key, "rounding", 8 * COPIES * SIZE)).reshape(COPIES, SIZE)
    # Both servers know it, so that it hides nothing: it makes the three fail independently.
    moved = whole + noise if leader else whole - noise
    return np.concatenate([whole[None], RING.from_signed(_divide(RING.to_signed(moved)))])


def _divide(values: Signed) -> Signed:
    half = np.int64(1 << (SPLIT - 1))
    return (values >> SPLIT) + ((values & (2 * half - 1)) >= half)  # to nearest, without an overflow


@dataclass(frozen=True)
class MeanProducts:
    """Exact inner products of the projected mean: with every update, and with itself."""

    clients: tuple[int, ...]
    square: int


def join_products(matrix: Words, n: int) -> MeanProducts | None:
    """From the products of `n` updates and the rows of the mean. None: copies differ, at worst once in 2**28 rounds."""
    low = [*RING.to_signed(matrix[n, :n]).tolist(), int(RING.to_signed(matrix[n, n : n + 1])[0])]
    votes = Counter[tuple[int, ...]]()
    for i in range(n + 1, n + MEAN_ROWS):
        high = RING.to_signed(matrix[i, :n]).tolist()
        square = int(RING.to_signed(matrix[i, i : i + 1])[0])
        above = [*(v << SPLIT for v in high), square << (2 * SPLIT)]
        votes[tuple(b + ((a - b + (1 << 63)) >> 64 << 64) for a, b in zip(above, low, strict=True))] += 1
    found, count = votes.most_common(1)[0]
    return MeanProducts(found[:n], found[n]) if 2 * count > COPIES and found[n] >= 0 else None


def multiply_in_the_clear(mean: Signed, rows: Signed) -> MeanProducts:
    """The same from the projections themselves."""
    high = _divide(mean)
    low = mean - (high << SPLIT)
    clients = ((rows @ high).tolist(), (rows @ low).tolist())
    square = (int(high @ high) << (2 * SPLIT)) + (int(high @ low) << (SPLIT + 1)) + int(low @ low)
    return MeanProducts(tuple((a << SPLIT) + b for a, b in zip(*clients, strict=True)), square)
