"""An array of a reply whose update a filter has changed. Its numbers are computed when a strategy reads them."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from flwr.app import Array

from .arrays import SERIALIZATION, NDArray


class RewrittenArray(Array):
    """The model's own array plus the change. Only the change is held, which is a view of the filter's result.

    Args:
        own: The array of the model.
        start: The same numbers in the precision of updates.
        change: What is added to them.
    """

    def __init__(self, own: NDArray, start: NDArray, change: NDArray) -> None:
        # Past Flower's `__setattr__`, which takes several times as long.
        self.__dict__.update(
            dtype=str(own.dtype), shape=own.shape, stype=SERIALIZATION, _own=own, _start=start, _change=change
        )

    def numpy(self) -> NDArray:
        """A new array at every call."""
        own: NDArray = self.__dict__["_own"]
        values: NDArray = self.__dict__["_start"] + self.__dict__["_change"]
        return values.astype(own.dtype, copy=False).reshape(own.shape)

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """As numpy writes it. Strategies call `numpy` instead."""
        file = BytesIO()
        np.save(file, self.numpy(), allow_pickle=False)
        return file.getvalue()
