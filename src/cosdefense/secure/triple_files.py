"""Triples in files: a dealer writes one for each server. A server destroys each half when it uses it."""

from __future__ import annotations

import os
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Literal, get_args

from .durable import replace_file
from .messages import Malformed, Reader, number
from .projection import RING
from .streams import KEY
from .terms import MAX_CLIENTS, MEAN_ROWS
from .triples import NoTriple, TripleHalf, TripleStock, deal

MAGIC = b"cosdefense triples 1\0"
MOST_ROWS = MAX_CLIENTS + MEAN_ROWS
HEADER = len(MAGIC) + 1 + KEY + 2 * 8
Role = Literal["leader", "helper"]
ROLES = get_args(Role)


class BadTriples(ValueError):
    """A file of triples that cannot be used."""


def deal_files(leader: Path, helper: Path, clients: int, count: int) -> None:
    """Write fresh triples, one file for each server. Existing files are never replaced.

    `clients`: the most rows that can be multiplied, which are also those of a running mean.
    """
    if not 3 <= clients <= MOST_ROWS or count < 1:
        raise BadTriples(f"a deal needs 3 to {MOST_ROWS} rows and at least one round, got {clients} and {count}")
    name, flags = os.urandom(KEY), os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with (
        os.fdopen(os.open(leader, flags, 0o600), "wb") as ours,
        os.fdopen(os.open(helper, flags, 0o600), "wb") as theirs,
    ):
        for role, file in enumerate((ours, theirs)):
            file.write(MAGIC + bytes([role]) + name + number(clients) + number(count))
        for _ in range(count):
            a, b = deal(clients)
            assert b.products is not None
            ours.write(a.seed)
            theirs.write(b.seed + RING.to_bytes(b.products.reshape(-1)))


class TripleFile:
    """A server's file of triples, open for as long as the object lives: no other process can use it meanwhile."""

    def __init__(self, path: Path, role: Role) -> None:
        self._path = path
        try:
            if path.stat().st_mode & 0o077:
                raise BadTriples(f"{path} can be read by others: chmod 600 {path}")
            self._file = path.open("r+b", buffering=0)
        except OSError as error:
            raise BadTriples(f"{path} cannot be read: {error}") from error
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
            self.deal, self.clients, self.count = self._read_header(role)
            self._width = _width(role, self.clients)
            self._read_position()
        except BlockingIOError as error:
            self._file.close()
            raise BadTriples(f"{path} is in use by another process") from error
        except BadTriples:
            self._file.close()
            raise

    def _read_header(self, role: Role) -> tuple[bytes, int, int]:
        reader = Reader(self._file.read(HEADER), str(self._path))
        try:
            if reader.take(len(MAGIC)) != MAGIC:
                raise Malformed(f"{self._path} holds no triples")
            owner, name, clients, count = reader.take(1)[0], reader.take(KEY), reader.number(), reader.number()
        except Malformed as error:
            raise BadTriples(str(error)) from error
        if owner != ROLES.index(role):
            raise BadTriples(f"{self._path} is not for the {role}")
        size = self._path.stat().st_size
        if not 3 <= clients <= MOST_ROWS or size != HEADER + count * _width(role, clients):
            raise BadTriples(f"{self._path} has the wrong length for {count} triples of {clients} clients")
        return name, clients, count

    @property
    def used(self) -> Path:
        """Where the first triple that was not used is remembered."""
        return self._path.with_name(self._path.name + ".used")

    def stock(self) -> TripleStock:
        """The triples that were not used yet."""
        return TripleStock(self.deal, self.count, self._take, self._read_position(), self._save_position)

    def close(self) -> None:
        self._file.close()

    def _read_position(self) -> int:
        if not self.used.exists():
            return 0
        try:
            name, position = self.used.read_text(encoding="utf-8").split()
            found = int(position)
        except (OSError, ValueError) as error:
            raise BadTriples(f"{self.used} cannot be read, and triples must not be used twice: {error}") from error
        if name != self.deal.hex() or not 0 <= found <= self.count:
            raise BadTriples(f"{self.used} belongs to other triples than {self._path}")
        return found

    def _save_position(self, position: int) -> None:
        try:
            replace_file(self.used, f"{self.deal.hex()} {position}\n")
        except OSError as error:
            raise NoTriple(f"no triple is used, because that cannot be remembered: {error.strerror}") from error

    def _take(self, index: int) -> TripleHalf:
        """Read a half and overwrite it: whoever gets the file later learns nothing about past rounds."""
        at = HEADER + index * self._width
        data = os.pread(self._file.fileno(), self._width, at)
        if len(data) != self._width or not any(data[:KEY]):
            raise NoTriple(f"triple {index} was used")
        os.pwrite(self._file.fileno(), bytes(self._width), at)
        os.fsync(self._file.fileno())
        products = RING.from_bytes(data[KEY:]) if len(data) > KEY else None
        return TripleHalf(data[:KEY], self.clients, products)


def _width(role: Role, clients: int) -> int:
    """Bytes of a half."""
    return KEY + (8 * clients**2 if role == "helper" else 0)
