"""Reads and writes bytes strictly: little-endian, every field fixed or with its length, no byte left over."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from .proof import ELEMENT, P

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview


class Malformed(ValueError):
    """Bytes that are not a message of the expected form."""


class Reader:
    """Takes fields from the front of a message."""

    def __init__(self, data: Bytes, what: str) -> None:
        self._data, self._what, self._at = memoryview(data), what, 0

    def take(self, n: int) -> bytes:
        return bytes(self._take(n))

    def _take(self, n: int) -> memoryview:
        if n > len(self._data) - self._at:
            raise Malformed(f"{self._what} ends too early: {n} bytes needed, {len(self._data) - self._at} left")
        taken = self._data[self._at : self._at + n]
        self._at += n
        return taken

    def number(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def sized(self) -> bytes:
        return self.take(self.number())

    def view(self) -> memoryview:
        """As `sized`, without a copy."""
        return self._take(self.number())

    def text(self) -> str:
        try:
            return self.sized().decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"{self._what} holds text that is not UTF-8") from error

    def elements(self, n: int) -> list[int]:
        """Elements of the proof's field, in their only form."""
        found = [int.from_bytes(self.take(ELEMENT), "little") for _ in range(n)]
        if any(element >= P for element in found):
            raise Malformed(f"{self._what} holds a number that is not an element of the field")
        return found

    def many(self, read: Callable[[Reader], T], most: int) -> list[T]:
        n = self.number()
        if n > most:
            raise Malformed(f"{self._what} holds {n} entries; at most {most} are allowed")
        return [read(self) for _ in range(n)]

    def end(self) -> None:
        if self._at != len(self._data):
            raise Malformed(f"{self._what} has {len(self._data) - self._at} bytes too many")


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def sized(data: bytes) -> bytes:
    return number(len(data)) + data


def elements(values: Sequence[int]) -> bytes:
    return b"".join(value.to_bytes(ELEMENT, "little") for value in values)
