"""The global model that was sent to the nodes. Replies are compared with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ..core import Layout
from ..ops.parallel import map_in_threads
from .arrays import ArraySpec, NDArray, get_specs

NUMBERS_PER_THREAD = 1 << 22  # at a time


@dataclass(frozen=True, eq=False)
class SentModel:
    """The arrays of a model, and where they are in a vector."""

    arrays: Mapping[str, NDArray]
    layout: Layout

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray], head: str | None = None) -> SentModel:
        return cls(arrays, Layout.of(arrays, head))

    def only(self, names: Collection[str] | None) -> SentModel:
        """The same model with a vector that holds only these tensors. None: all of them."""
        return self if names is None else SentModel(self.arrays, self.layout.only(names))

    @cached_property
    def specs(self) -> dict[str, ArraySpec]:
        """What the arrays of a reply must look like."""
        return get_specs(self.arrays)

    @cached_property
    def params(self) -> torch.Tensor:
        """The model as a vector, in single precision or the model's own if that is higher."""
        wide = any(array.dtype == np.float64 for array in self.arrays.values())
        return torch.from_numpy(
            np.concatenate(
                [self.arrays[name].reshape(-1) for name, _ in self.layout.shapes],
                dtype=np.float64 if wide else np.float32,
            )
        )

    def compute_updates(self, replies: Sequence[Mapping[str, NDArray]]) -> torch.Tensor:
        """One row per reply: its arrays minus the model. Written in place, in threads.

        A second copy of all models may not fit into memory.
        """
        start = self.params.numpy()
        # numpy's memory, because it asks for huge pages: the first write to torch's takes four times as long.
        rows = np.empty((len(replies), len(start)), start.dtype)

        def write(some: slice) -> None:
            with np.errstate(over="ignore"):  # the defense rejects rows that are not finite
                for row, arrays in zip(rows[some], replies[some], strict=True):
                    for name, where in self.layout.slices.items():
                        np.subtract(arrays[name].reshape(-1), start[where], out=row[where])

        for _ in map_in_threads(write, self.split(len(replies))):
            pass
        return torch.from_numpy(rows)

    def split(self, n: int) -> list[slice]:
        """Ranges of n replies to distribute over threads, each of so many numbers that a thread is worth it."""
        step = max(1, NUMBERS_PER_THREAD // self.layout.size)
        return [slice(first, first + step) for first in range(0, n, step)]
