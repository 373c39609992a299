"""Cosines between rows."""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import column_ranges, columns_per_block, float64_blocks, row_ranges
from .distances import squared_distances
from .inner_products import inner_products
from .norms import largest_magnitudes, row_norms
from .parallel import map_in_threads
from .precision import compute_dtype

NEARLY_PARALLEL = 0.1  # ‖a − b‖² in units of ‖a‖ ‖b‖; for larger ones a difference of cosines loses nothing


def cosine(rows: Float[Tensor, "n k"], reference: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    """Cosine between every row and `reference`; 0 where either is zero."""
    rows, unit = rows.detach(), _normalize(reference.detach()[None])
    pieces = map_in_threads(lambda some: _normalize(rows[some]).mul_(unit).sum(dim=1), row_ranges(rows))
    return torch.cat(list(pieces)).clamp(-1, 1).to(compute_dtype(rows.dtype))


def cosines_with(rows: Float[Tensor, "n k"], references: Float[Tensor, "m k"]) -> Float[Tensor, "n m"]:
    """Cosine between every row and every reference, in float64; 0 where either is zero.

    All references are compared in one pass over the rows.
    """
    rows, units, scale = rows.detach(), _normalize(references.detach()), largest_magnitudes(rows)

    def multiply(where: slice) -> Tensor:
        total = torch.zeros(len(rows), 1 + len(units), dtype=torch.float64, device=rows.device)
        pieces = torch.split(units[:, where], columns_per_block(rows), dim=1)
        for wide, piece in zip(float64_blocks(rows[:, where]), pieces, strict=True):
            wide = wide if scale is None else wide.div_(scale)
            total[:, 1:].addmm_(wide, piece.T)
            total[:, 0] += torch.linalg.vector_norm(wide, dim=1).square_()
        return total

    squares, *products = reduce(Tensor.add_, map_in_threads(multiply, column_ranges(rows))).unbind(dim=1)
    norms = torch.where(squares > 0, squares, 1).sqrt()
    return (torch.stack(products, dim=1) / norms[:, None]).clamp(-1, 1)


def cosines(rows: Float[Tensor, "n k"], origin: Float[Tensor, " k"] | None = None) -> Float[Tensor, "n n"]:
    """Cosine between every two rows (plus `origin`), in float64; 0 where either is zero."""
    center = None if origin is None else -origin
    products = inner_products(rows, center, scale=largest_magnitudes(rows, center))
    norms = products.diagonal().sqrt()
    norms = torch.where(norms > 0, norms, 1)
    return (products / norms[:, None] / norms).clamp(-1, 1)


def cosine_distances(rows: Float[Tensor, "n k"], origin: Float[Tensor, " k"] | None = None) -> Float[Tensor, "n n"]:
    """1 − cosine between every two rows (plus `origin`), in float64; 1 where either is zero.

    For nearly parallel vectors a and b, 1 − cos(a, b) = (‖a − b‖² − (‖a‖ − ‖b‖)²) / (2 ‖a‖ ‖b‖) subtracts nothing but
    their own small differences: identical rows have identical distances, and the distances of models that differ by a
    millionth of their norm are exact.
    """
    norms = row_norms(rows, None if origin is None else -origin)
    # ‖a‖² − ‖b‖², without the norm of the origin
    gains = row_norms(rows).square() + (0 if origin is None else 2 * _dot(rows, origin))
    sums, scale = norms[:, None] + norms, norms[:, None] * norms
    squares = squared_distances(rows)
    differences = (gains[:, None] - gains) / torch.where(sums > 0, sums, 1)
    result = (squares - differences.square()) / (2 * torch.where(scale > 0, scale, 1))
    near = squares <= NEARLY_PARALLEL * scale
    if not bool(near.all()):
        result = torch.where(near, result, 1 - cosines(rows, origin))
    result = torch.where((scale > 0) | (squares == 0), result.clamp(0, 2), 1).fill_diagonal_(0)
    return (result + result.T) / 2  # divided by one norm after the other, the two halves differ by a bit


def _dot(rows: Float[Tensor, "n k"], vector: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    """⟨row, vector⟩ in float64."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    pieces = torch.split(vector.detach(), columns_per_block(rows))
    for wide, piece in zip(float64_blocks(rows.detach()), pieces, strict=True):
        total += wide @ piece.double()
    return total


def _normalize(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Scales every row to norm 1 (a zero row stays zero), in float64."""
    scale = rows.abs().amax(dim=1, keepdim=True).double()  # first, so that no square over- or underflows
    wide = rows / torch.where(scale > 0, scale, 1)
    norms = wide.square().sum(dim=1, keepdim=True).sqrt()
    return wide.div_(torch.where(norms > 0, norms, 1))
