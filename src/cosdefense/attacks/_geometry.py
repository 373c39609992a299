"""Vector geometry that several attacks use."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, generator
from ..ops import row_norms


def remove_projection(vector: Float[Tensor, " k"], other: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Subtract the projection of `vector` onto `other`: the result is orthogonal to `other`."""
    axis, wide = normalize(other.double()), vector.double()
    return (wide - (wide @ axis) * axis).to(vector.dtype)


def normalize(vector: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Scale the vector to norm 1. A zero vector stays zero."""
    norm = row_norms(vector[None])
    return vector / torch.where(norm > 0, norm, 1)


def draw_unit_vectors(cohort: Cohort, malicious: Bool[Tensor, " n"], purpose: str) -> Float[Tensor, "m t"]:
    """Draw a random unit vector for every malicious client, over the trainable coordinates, in float64.

    One random stream per client: its vector depends neither on the device nor on the order of rows.
    """
    clients, size = cohort.clients[malicious].tolist(), cohort.layout.n_trainable
    drawn = [
        torch.randn(size, generator=generator(cohort.seed, purpose, client), dtype=torch.float64) for client in clients
    ]
    return torch.stack([normalize(vector) for vector in drawn]).to(cohort.updates.device)
