"""Where a helper keeps its half of the running mean: that after its last settlement, and that before it.

A leader that lost the answer to a settlement repeats the round from the mean before. A half that is gone or damaged is
no error: the mean starts again.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from .durable import replace_file
from .messages import Malformed, Reader, number
from .projection import RING
from .ring import Words
from .secret_mean import SUMS
from .streams import KEY, digest

LOG = logging.getLogger(__name__)
MAGIC = b"cosdefense mean 1\0"


class MeanStore:
    """Halves by the number of the ticket after which they were what they are.

    Args:
        path: The helper's state file; halves lie beside it. None: in memory, for simulations.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept = dict[int, Words]()

    def find(self, version: int, size: int) -> Words | None:
        """The halves of both sums. None: they are gone, and the log says so."""
        found = self._kept.get(version) if self._path is None else self._read(self._name(version), version)
        if found is not None and found.shape == (SUMS, size):
            return found
        LOG.warning("the half of the running mean of round %d is lost: the mean starts again", version)
        return None

    def save(self, version: int, halves: Words) -> None:
        """On disk when this returns. Raises `OSError`."""
        if self._path is None:
            self._kept[version] = halves
            return
        body = MAGIC + number(version) + number(halves.shape[1]) + RING.to_bytes(halves.reshape(-1))
        replace_file(self._name(version), body + digest("mean", body))

    def keep_only(self, *versions: int) -> None:
        """Delete all others."""
        self._kept = {version: halves for version, halves in self._kept.items() if version in versions}
        if self._path is not None:
            names = {self._name(version) for version in versions}
            for path in self._path.parent.glob(f"{self._path.name}.mean.*"):
                if path not in names:
                    path.unlink(missing_ok=True)

    def _name(self, version: int) -> Path:
        assert self._path is not None
        return self._path.with_name(f"{self._path.name}.mean.{version}")

    @staticmethod
    def _read(path: Path, version: int) -> Words | None:
        try:
            data = path.read_bytes()
            reader = Reader(data, str(path))
            magic, found, size = reader.take(len(MAGIC)), reader.number(), reader.number()
            words = RING.from_bytes(reader.take(8 * SUMS * size)).reshape(SUMS, size)
            mark = reader.take(KEY)
            reader.end()
        except (OSError, Malformed) as problem:
            LOG.warning("%s cannot be read: %s", path.name, problem)
            return None
        whole = digest("mean", data[:-KEY]) == mark
        return words.astype(np.uint64, copy=False) if whole and magic == MAGIC and found == version else None
