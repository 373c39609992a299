"""Copies of small tensors between the memory of a CPU and that of a GPU.

A round has a few hundred kernels that take microseconds, so that waiting for a GPU costs as much as several of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor


def upload(tensor: Shaped[Tensor, "*shape"], device: torch.device) -> Shaped[Tensor, "*shape"]:
    """The tensor on this device, without waiting for what a GPU has to do before.

    Only for tensors in ordinary memory, which has been read when this returns. A copy from a GPU is waited for.
    """
    return tensor.to(device, non_blocking=tensor.device.type == "cpu")


def read_together(tensors: Sequence[Shaped[Tensor, "..."]]) -> list[Any]:
    """As `[tensor.tolist() for tensor in tensors]`, with a single wait for a GPU. Whole numbers stay below 2⁵³."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.tolist() for tensor in tensors]
    numbers = torch.cat([tensor.double().flatten() for tensor in tensors]).cpu()
    parts = torch.split(numbers, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).to(tensor.dtype).tolist() for part, tensor in zip(parts, tensors, strict=True)]
