"""Cosines between rows."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import row_ranges
from .inner_products import inner_products
from .norms import largest_magnitudes
from .parallel import map_in_threads
from .precision import compute_dtype


def cosine(rows: Float[Tensor, "n k"], reference: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    """Cosine between every row and `reference`; 0 where either is zero."""
    rows, unit = rows.detach(), _normalize(reference.detach()[None])
    pieces = map_in_threads(lambda some: _normalize(rows[some]).mul_(unit).sum(dim=1), row_ranges(rows))
    return torch.cat(list(pieces)).clamp(-1, 1).to(compute_dtype(rows.dtype))


def cosines(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Cosine between every two rows, in float64; 0 where either is zero."""
    products = inner_products(rows, scale=largest_magnitudes(rows))
    norms = products.diagonal().sqrt()
    norms = torch.where(norms > 0, norms, 1)
    return (products / norms[:, None] / norms).clamp(-1, 1)


def _normalize(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Scales every row to norm 1 (a zero row stays zero), in float64."""
    scale = rows.abs().amax(dim=1, keepdim=True).double()  # first, so that no square over- or underflows
    wide = rows / torch.where(scale > 0, scale, 1)
    norms = wide.square().sum(dim=1, keepdim=True).sqrt()
    return wide.div_(torch.where(norms > 0, norms, 1))
