"""Vector geometry that several attacks use."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..ops import row_norms


def remove_projection(vector: Float[Tensor, " k"], other: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Subtract the projection of `vector` onto `other`: the result is orthogonal to `other`."""
    axis, wide = normalize(other.double()), vector.double()
    return (wide - (wide @ axis) * axis).to(vector.dtype)


def normalize(vector: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Scale the vector to norm 1. A zero vector stays zero."""
    norm = row_norms(vector[None])
    return vector / torch.where(norm > 0, norm, 1)
