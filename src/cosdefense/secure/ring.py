"""Words modulo a power of two: what the bulk of an update is written in, and what its sums are computed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .streams import stream

Words = NDArray[np.unsignedinteger[Any]]
Signed = NDArray[np.int64]


@dataclass(frozen=True)
class Ring:
    """Integers modulo 2**bits, kept as uint32 (32 bits), as masked uint64 (40 bits) or as uint64 (64 bits)."""

    bits: int

    @property
    def width(self) -> int:
        """Bytes of a word in a message."""
        return self.bits // 8

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        return np.uint32 if self.bits == 32 else np.uint64

    def zeros(self, n: int) -> Words:
        return np.zeros(n, self.dtype)

    def draw(self, key: bytes, n: int) -> Words:
        """The mask of an update of `n` words."""
        return self.from_bytes(stream(key, "words", self.width * n))

    def from_signed(self, values: Signed) -> Words:
        return self._reduce(values.astype(np.uint64)) if self.bits != 32 else values.astype(np.uint32)

    def to_signed(self, words: Words) -> Signed:
        """The representatives nearest to zero."""
        if self.bits == 32:
            return words.view(np.int32).astype(np.int64)
        shift = 64 - self.bits
        return (words.astype(np.uint64) << np.uint64(shift)).view(np.int64) >> shift

    def add(self, a: Words, b: Words) -> Words:
        return self._reduce(a + b)

    def subtract(self, a: Words, b: Words) -> Words:
        return self._reduce(a - b)

    def multiply(self, words: Words, factor: int) -> Words:
        return self._reduce(words * self.dtype(factor))

    def to_bytes(self, words: Words) -> bytes:
        if self.bits == 32:
            return words.astype("<u4", copy=False).tobytes()
        return words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, : self.width].tobytes()

    def from_bytes(self, data: bytes | bytearray | memoryview) -> Words:
        """The words of a message, whose length was checked."""
        if self.bits == 32:
            return np.frombuffer(data, "<u4")
        if self.bits == 64:
            return np.frombuffer(data, "<u8")
        wide = np.zeros((len(data) // self.width, 8), np.uint8)
        wide[:, : self.width] = np.frombuffer(data, np.uint8).reshape(-1, self.width)
        return wide.reshape(-1).view("<u8")

    def _reduce(self, words: Words) -> Words:
        return words if self.bits in (32, 64) else words & np.uint64(self.mask)
