"""The global model that was sent to the nodes. Replies are compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ..core import Layout
from .arrays import ArraySpec, NDArray, get_specs


@dataclass(frozen=True, eq=False)
class SentModel:
    """The arrays of a model, and where they are in a vector."""

    arrays: Mapping[str, NDArray]
    layout: Layout

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray], head: str | None = None) -> SentModel:
        return cls(arrays, Layout.of(arrays, head))

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
