"""Where each named tensor of a model lives in one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

# A bare state_dict does not say which tensors are trained. These names are what torch's own
# normalisation layers call the statistics they only track.
TRACKED_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Layout:
    """The order, names and shapes of the tensors that make up a vector of `d` coordinates.

    Trainable tensors come first, then what is not trained: frozen parameters and floating-point
    buffers. Integer buffers (BatchNorm's counters) are not in the vector: averaging a counter means nothing.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    head: str  # the classifier's weight matrix: the "last layer" of the papers
    n_trainable: int  # coordinates [0, n_trainable) are weights, the rest are buffers

    def __post_init__(self) -> None:
        if self.head not in self.trainable:
            raise ValueError(f"head must be one of {sorted(self.trainable)}, got {self.head!r}")

    @classmethod
    def of(cls, model: nn.Module | Mapping[str, Any], head: str | None = None) -> Layout:
        """The layout of a module, a `state_dict`, or any other mapping of names to arrays (Flower's `ArrayRecord`)."""
        if isinstance(model, nn.Module):
            parameters = dict(model.named_parameters())
            trainable = _floating({name: p for name, p in parameters.items() if p.requires_grad})
            frozen = _floating({name: p for name, p in parameters.items() if not p.requires_grad})
            buffers = {**frozen, **_floating(dict(model.named_buffers()))}
        else:
            tensors = _floating(model)
            trainable = {name: shape for name, shape in tensors.items() if not _is_tracked(name)}
            buffers = {name: shape for name, shape in tensors.items() if _is_tracked(name)}
        if not trainable:
            raise ValueError(f"a layout needs at least one trainable floating-point tensor, got {sorted(buffers)}")
        n_trainable = sum(math.prod(shape) for shape in trainable.values())
        return cls((*trainable.items(), *buffers.items()), head or _last_matrix(trainable), n_trainable)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each tensor lives in the vector."""
        slices, start = {}, 0
        for name, shape in self.shapes:
            slices[name] = slice(start, start + math.prod(shape))
            start = slices[name].stop
        return slices

    @cached_property
    def trainable(self) -> tuple[str, ...]:
        """The names of the tensors that are trained."""
        return tuple(name for name, where in self.slices.items() if where.stop <= self.n_trainable)

    @cached_property
    def size(self) -> int:
        """`d`, the length of the vector."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    @cached_property
    def variances(self) -> tuple[slice, ...]:
        """Where tracked variances live: no update may push them below zero."""
        return tuple(where for name, where in self.slices.items() if name.endswith("running_var"))

    def flatten(self, tensors: Mapping[str, Any]) -> Float[Tensor, " d"]:
        """One vector from named tensors or arrays; names that the layout does not know are ignored."""
        pieces = []
        for name, shape in self.shapes:
            if name not in tensors:
                raise ValueError(f"tensor {name!r} is missing, got {sorted(tensors)}")
            tensor = _as_tensor(tensors[name])
            if tuple(tensor.shape) != shape:
                raise ValueError(f"tensor {name!r} needs shape {shape}, got {tuple(tensor.shape)}")
            pieces.append(tensor.reshape(-1))
        return torch.cat(pieces)

    def unflatten(self, vector: Float[Tensor, "*batch d"]) -> dict[str, Tensor]:
        """Named views into `vector`; leading dimensions are kept."""
        batch = vector.shape[:-1]
        return {name: vector[..., self.slices[name]].reshape((*batch, *shape)) for name, shape in self.shapes}


def _floating(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if _is_floating(tensor.dtype)}


def _is_floating(dtype: Any) -> bool:
    if isinstance(dtype, torch.dtype):
        return dtype.is_floating_point
    return bool(np.issubdtype(np.dtype(dtype), np.floating))


def _is_tracked(name: str) -> bool:
    return name.rpartition(".")[2] in TRACKED_STATISTICS


def _as_tensor(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array
    # Flower's Array keeps serialised bytes and offers numpy(); the copy makes the memory ours and writable.
    return torch.from_numpy(np.array(array.numpy() if hasattr(array, "numpy") else array))


def _last_matrix(shapes: Mapping[str, tuple[int, ...]]) -> str:
    matrices = [name for name, shape in shapes.items() if len(shape) >= 2]
    return matrices[-1] if matrices else list(shapes)[-1]
