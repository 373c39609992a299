"""Vectors turned away from others."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..ops import row_norms


def without(vector: Float[Tensor, " k"], other: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """The vector less what of it points along the other: orthogonal to it."""
    along, wide = unit(other.double()), vector.double()
    return (wide - (wide @ along) * along).to(vector.dtype)


def unit(vector: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """The vector at length one; a zero vector stays."""
    length = row_norms(vector[None])
    return vector / torch.where(length > 0, length, 1)
