"""The sketch of a vector of words: 512 random sums, from which its length can be estimated.

It is linear modulo the ring, so each server sketches its own half. Coefficients are 0, 0, 1 and −1: with ±1 alone, two
words of half the modulus would cancel in every sum.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .ring import Ring, Words
from .streams import stream

FOLDS, ROWS = 64, 8
SKETCH = FOLDS * ROWS  # numbers of a sketch
BLOCKS = 256  # blocks at a time: 2**8 words of up to 2**40 add up exactly in float64; wider words are cut in two
TERNARY = np.array([[(0, 0, 1, -1)[value >> 2 * i & 3] for i in range(4)] for value in range(256)], np.float64)


def sketch(words: Words, key: bytes, ring: Ring) -> Words:
    """Sums of the words with coefficients from {0, 0, 1, −1} that the key decides.

    The words are arranged in blocks. A folding adds up the blocks with one coefficient each; 8 rows of every folding
    add up its columns with one coefficient each. The expected square of a sum is a quarter of the squared length.
    """
    width = 1024 if words.size >= 1 << 16 else 64
    n_blocks = -(-words.size // width)
    signs = _ternary(key, "blocks", n_blocks, FOLDS)
    columns = _ternary(key, "columns", FOLDS, width, ROWS)
    folded = np.zeros((FOLDS, width), np.uint64)
    for start in range(0, n_blocks, BLOCKS):
        part = words[start * width : (start + BLOCKS) * width]
        if part.size % width:
            part = np.concatenate([part, np.zeros(-part.size % width, part.dtype)])
        some = signs[start : start + BLOCKS].T
        for shift, limb in _limbs(part.reshape(-1, width), ring):
            sums = (some @ limb.astype(np.float64)).astype(np.int64).astype(np.uint64) << np.uint64(shift)
            folded = (folded + sums) & np.uint64(ring.mask)
    # Half a word at a time, so that these sums are exact in float64 as well.
    half = ring.bits // 2
    high = np.einsum("fw,fwr->fr", (folded >> np.uint64(half)).astype(np.float64), columns).astype(np.int64)
    low = np.einsum("fw,fwr->fr", (folded & np.uint64((1 << half) - 1)).astype(np.float64), columns).astype(np.int64)
    return ring.from_signed(((high << half) + low).reshape(-1))


def _limbs(words: Words, ring: Ring) -> list[tuple[int, Words]]:
    """Parts of the words that are small enough for exact sums, and how far each is shifted."""
    if ring.bits <= 40:
        return [(0, words)]
    return [(0, words & np.uint64(0xFFFFFFFF)), (32, words >> np.uint64(32))]


def _ternary(key: bytes, label: str, *shape: int) -> NDArray[np.float64]:
    n = math.prod(shape)
    drawn = TERNARY[np.frombuffer(stream(key, label, -(-n // 4)), np.uint8)]
    return drawn.reshape(-1)[:n].reshape(shape)
