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
    return normalize_rows(vector[None])[0]


def normalize_rows(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Scale every row to norm 1. A row of zeros stays zero."""
    norms = row_norms(rows)
    return rows / torch.where(norms > 0, norms, 1)[:, None]


def draw_unit_vectors(cohort: Cohort, malicious: Bool[Tensor, " n"], purpose: str) -> Float[Tensor, "m t"]:
    """Draw a random unit vector for every malicious client, over the trainable coordinates, in float64.

    One random stream per client: its vector does not depend on the order of rows. Streams are drawn on the updates'
    device, so that a CPU and a GPU draw different vectors; and in float32, which a CPU draws four times as fast as
    float64. They are normalized in float64.
    """
    clients, size, device = cohort.clients[malicious].tolist(), cohort.layout.n_trainable, cohort.updates.device
    vectors = torch.empty(len(clients), size, dtype=torch.float64, device=device)
    for row, client in enumerate(clients):
        rng = generator(cohort.seed, purpose, client, device=device)
        vectors[row] = torch.randn(size, generator=rng, dtype=torch.float32, device=device)
    return vectors.div_(row_norms(vectors)[:, None])
