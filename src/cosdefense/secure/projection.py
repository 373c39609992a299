"""Vectors of words as 4,096 numbers whose inner products are nearly those of the vectors.

The count sketch of Charikar, Chen, Farach-Colton. Finding Frequent Items in Data Streams. ICALP 2002. Every coordinate
is added to one of the numbers, or subtracted from it. That is linear, so each server projects its own half. For any two
vectors the inner product of their projections is right on average, and its standard deviation is at most
√(2 / 4096) = 0.022 of the product of their norms.

The coefficients must be drawn after the updates are fixed: whoever knows them can choose a projection.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .ring import Ring, Words
from .streams import stream

SIZE = 4096
RING = Ring(64)
REFERENCE_BITS = 28  # fraction bits of a public vector of norm 1
PIECE = 1 << 16  # words at a time: 2**16 numbers below 2**32 add up exactly in float64
LOW = np.uint64(0xFFFFFFFF)


def project(words: Words, key: bytes) -> Words:
    """The projection of words modulo 2**64 that the key decides. At most 4,096 words stay as they are."""
    total = np.zeros(2 * SIZE, np.uint64)
    if words.size <= SIZE:
        total[: words.size] = words
        return total[:SIZE]
    chosen = np.frombuffer(stream(key, "projection", 2 * words.size), "<u2")
    for start in range(0, words.size, PIECE):
        part = words[start : start + PIECE]
        # Twelve bits say where to add, one says with which sign.
        where = (chosen[start : start + PIECE] & np.uint16(2 * SIZE - 1)).astype(np.intp)
        low = np.bincount(where, (part & LOW).astype(np.float64), 2 * SIZE).astype(np.uint64)
        high = np.bincount(where, (part >> np.uint64(32)).astype(np.float64), 2 * SIZE).astype(np.uint64)
        total += low + (high << np.uint64(32))
    return total[:SIZE] - total[SIZE:]


def encode_reference(vector: NDArray[np.float64]) -> Words:
    """A public vector as words. Its length does not matter: it gets the norm 1."""
    scale = float(np.abs(vector).max(initial=0.0))  # first, so that no square overflows
    if not 0 < scale < np.inf:
        return RING.zeros(len(vector))
    unit = vector / scale
    return RING.from_signed(np.rint(unit / np.linalg.norm(unit) * 2.0**REFERENCE_BITS).astype(np.int64))
