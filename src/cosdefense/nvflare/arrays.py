"""Models of NVIDIA FLARE, which are numpy arrays by name, as tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_tensors(params: object) -> dict[str, Tensor]:
    """Arrays by name as tensors. Raises ValueError where a client sent something else."""
    if not isinstance(params, Mapping) or not params:
        raise ValueError(f"needed arrays by name, got {type(params).__name__}")
    return {str(name): _to_tensor(name, value) for name, value in params.items()}


def _to_tensor(name: object, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None
    if array is None or array.dtype.kind not in "fiub":
        kind = type(value).__name__ if array is None else str(array.dtype)
        raise ValueError(f"{name!s:.60}: needed an array of numbers, got {kind:.60}")
    return torch.from_numpy(np.array(array))  # a copy: others may still write to theirs


def to_client_id(name: str) -> int:
    """A whole number for a client's name, the same in every round and after a restart."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1  # integers of tensors are signed
