"""Lengths and angles of rows, and whether they hold numbers at all."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .blocks import blocks, groups, stretches, wide_blocks
from .products import products_of
from .threads import in_threads

PIECE = 256  # numbers whose squares float32 adds to a few units of its last digit
SPAN = 1 << 20  # numbers at a time, less a center: shorter blocks cost torch's threads more than they save
SHORTEST = 1e-12  # of a length whose squares float32 can hold


def row_norms(rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None = None) -> Float[Tensor, " n"]:
    """Euclidean length of every row (less `center`), in float64; of float32 rows to nearly all of their digits."""
    rows = rows.detach()
    if not _narrow(rows) or not (center is None or center.dtype == rows.dtype):
        return _wide_norms(rows, center)
    norms = _narrow_norms(rows, center)
    for i in (~(norms.isfinite() & (norms > SHORTEST))).nonzero().flatten().tolist():
        norms[i] = _wide_norms(rows[i : i + 1], center)[0]
    return norms


def _narrow(rows: Float[Tensor, "n k"]) -> bool:
    """Whether float32 is a good start: elsewhere nothing is gained, and sums across memory are much less exact."""
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.stride(1) == 1


def _wide_norms(rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None) -> Float[Tensor, " n"]:
    def lengths(some: slice) -> Tensor:
        scale = _scale(rows[some], center)
        total = torch.zeros(len(rows[some]), dtype=torch.float64, device=rows.device)
        for wide in wide_blocks(rows[some], center):
            total += torch.linalg.vector_norm(wide if scale is None else wide.div_(scale), dim=1).square_()
        return total.sqrt_() if scale is None else total.sqrt_() * scale[:, 0]

    return torch.cat(list(in_threads(lengths, groups(rows))))


def _narrow_norms(rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None) -> Float[Tensor, " n"]:
    """Lengths of float32 rows by squares in float32, a piece at a time: wrong where these over- or underflow."""
    if center is None:
        return _squares(rows).sqrt_()
    step = max(PIECE, SPAN // max(1, len(rows)) // PIECE * PIECE)
    memory = rows.new_empty(len(rows) * min(step, rows.shape[1]))
    total = rows.new_zeros(len(rows), dtype=torch.float64)
    for block, middle in zip(torch.split(rows, step, dim=1), torch.split(center.detach(), step), strict=True):
        total += _squares(torch.sub(block, middle, out=memory[: block.numel()].view_as(block)))
    return total.sqrt_()


def _squares(rows: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    whole = rows.shape[1] // PIECE * PIECE
    pieces = torch.linalg.vector_norm(torch.unflatten(rows[:, :whole], 1, (whole // PIECE, PIECE)), dim=2).double()
    rest: Tensor = torch.linalg.vector_norm(rows[:, whole:], dim=1).double()
    return rest.square_().add_(pieces.square_().sum(dim=1))


def cosine(rows: Float[Tensor, "n k"], reference: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    """Cosine between every row and `reference`; 0 where either is zero."""
    rows, unit = rows.detach(), _unit(reference.detach()[None])
    found = in_threads(lambda some: _unit(rows[some]).mul_(unit).sum(dim=1), groups(rows))
    return torch.cat(list(found)).clamp(-1, 1).to(rows.dtype)


def cosines(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Cosine between every two rows, in float64; 0 where either is zero."""
    total = products_of(rows, scale=_scale(rows))
    lengths = total.diagonal().sqrt()
    lengths = torch.where(lengths > 0, lengths, 1)
    return (total / lengths[:, None] / lengths).clamp(-1, 1)


def rescaled(rows: Float[Tensor, "n k"], factors: Float[Tensor, " n"]) -> Float[Tensor, "n k"]:
    """Every row times its factor, which may be any finite float64."""
    largest = torch.finfo(rows.dtype).max
    return rows * factors.clamp(-largest, largest).to(rows.dtype)[:, None]


def finite_rows(rows: Float[Tensor, "n k"]) -> Bool[Tensor, " n"]:
    """Which rows hold neither NaN nor infinity.

    A sum swallows neither: it is finite only if every number is. Rows whose sum is not (it may also
    have overflowed) are looked at number by number.
    """
    finite = rows.sum(dim=1).isfinite()
    for i in (~finite).nonzero().flatten().tolist():
        finite[i] = all(bool(block.isfinite().all()) for block in blocks(rows[i : i + 1]))
    return finite


def stays_finite(vector: Float[Tensor, " k"], step: Float[Tensor, " k"]) -> bool:
    """Whether every number of `vector + step` is finite."""

    def stays(where: slice) -> bool:
        pairs = zip(blocks(vector[None, where]), blocks(step[None, where]), strict=True)
        return all(bool(finite_rows(one + other)[0]) for one, other in pairs)

    return all(in_threads(stays, stretches(vector[None])))


def _scale(rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None = None) -> Float[Tensor, "n 1"] | None:
    """What to divide rows (less `center`) by, so that no square over- or underflows; None if not float64."""
    if rows.dtype != torch.float64:
        return None
    largest = torch.zeros(len(rows), 1, dtype=torch.float64, device=rows.device)
    for wide in wide_blocks(rows, center):
        largest = torch.maximum(largest, wide.abs_().amax(dim=1, keepdim=True))
    return torch.where(largest > 0, largest, 1)


def _unit(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Every row scaled to length one (a zero row stays zero), in float64."""
    scale = rows.abs().amax(dim=1, keepdim=True).double()  # first, so that no square over- or underflows
    wide = rows / torch.where(scale > 0, scale, 1)
    length = wide.square().sum(dim=1, keepdim=True).sqrt()
    return wide.div_(torch.where(length > 0, length, 1))
