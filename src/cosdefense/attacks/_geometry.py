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

    One random stream per client: its vector does not depend on the order of rows. Streams are drawn on the CPU, and in
    float32, which torch draws four times as fast as float64. They are normalized in float64 on the updates' device.
    Devices sum in different orders, so two of them differ by some 1e-16 of the norm: after rounding to float32 nearly
    every coordinate has the same bits.
    """
    clients, size = cohort.clients[malicious].tolist(), cohort.layout.n_trainable
    vectors = torch.empty(len(clients), size, dtype=torch.float64, device=cohort.updates.device)
    for row, client in enumerate(clients):
        vectors[row] = torch.randn(size, generator=generator(cohort.seed, purpose, client))
    return vectors.div_(row_norms(vectors)[:, None])
