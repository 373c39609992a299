"""Updates without a model: a matrix, or lists of arrays as Flower's clients send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Array = TypeVar("Array", np.ndarray, Tensor)


def to_rows(updates: Tensor | Sequence[Sequence[Any]]) -> Float[Tensor, "n d"]:
    """One row per client, in float32, or in float64 if any array is. Integer arrays are left out."""
    if isinstance(updates, Tensor):
        if updates.ndim != 2 or len(updates) == 0 or not updates.is_floating_point():
            shape = tuple(updates.shape)
            raise ValueError(f"updates need shape (n, d), at least one row and floats, got {shape} of {updates.dtype}")
        return updates if updates.dtype == torch.float64 else updates.float()
    if not isinstance(updates, Sequence):
        raise TypeError(f"updates must be a tensor of shape (n, d) or a list of lists, got {type(updates).__name__}")
    for number, arrays in enumerate(updates):
        _check_arrays(arrays, updates[0], number)
    tensors = [[_tensor(array).reshape(-1) for array in arrays] for arrays in updates]
    pieces = [[tensor for tensor in row if tensor.is_floating_point()] for row in tensors]
    if not pieces or not pieces[0]:
        raise ValueError("updates must hold at least one client with one floating-point array")
    wide = any(piece.dtype == torch.float64 for piece in pieces[0])
    return torch.stack([torch.cat(row).to(torch.float64 if wide else torch.float32) for row in pieces])


@overload
def from_row(row: Tensor, like: Tensor) -> Tensor: ...


@overload
def from_row(row: Tensor, like: Sequence[Array]) -> list[Array]: ...


def from_row(row: Float[Tensor, " d"], like: Tensor | Sequence[Any]) -> Tensor | list[Any]:
    """The row as arrays of these kinds, shapes and dtypes. Integer arrays are zero: a counter has no update."""
    if isinstance(like, Tensor):
        return narrow(row, like.dtype)
    result, start = list[Any](), 0
    for array in like:
        tensor = _tensor(array)
        if tensor.is_floating_point():
            piece = narrow(row[start : start + tensor.numel()].reshape(tensor.shape), tensor.dtype)
            start += tensor.numel()
        else:
            piece = torch.zeros_like(tensor)
        result.append(piece.clone() if isinstance(array, Tensor) else piece.numpy().copy())
    return result


def narrow(tensor: Float[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """The numbers in another precision. Those that are too large for it become its largest, not infinite."""
    limits = torch.finfo(dtype)
    return tensor.clamp(limits.min, limits.max).to(dtype)


def _check_arrays(arrays: Any, like: Sequence[Any], number: int) -> None:
    if not isinstance(arrays, Sequence) or isinstance(arrays, str):
        hint = ": stack them with torch.stack(updates)" if isinstance(arrays, Tensor) else ""
        raise TypeError(f"client {number} must be a list of arrays, got {type(arrays).__name__}{hint}")
    if len(arrays) != len(like):
        raise ValueError(f"client {number} must have {len(like)} arrays as client 0 has, got {len(arrays)}")
    for place, (array, first) in enumerate(zip(arrays, like, strict=True)):
        where = f"client {number}, array {place}"
        if not isinstance(array, Tensor | np.ndarray):
            raise TypeError(f"{where} must be an ndarray or a tensor, got {type(array).__name__}")
        for what in ("shape", "dtype", "device"):
            needed, got = getattr(first, what, None), getattr(array, what, None)
            if needed != got:
                needed, got = (tuple(first.shape), tuple(array.shape)) if what == "shape" else (needed, got)
                raise ValueError(f"{where} needs {what} {needed} as client 0 has, got {got}")


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.tensor(array)  # a copy: the array may be read-only
