"""Euclidean norms of rows, and rows multiplied by factors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import float64_blocks, row_ranges, split_columns
from .parallel import map_in_threads
from .precision import HALF

PIECE = 256  # numbers whose squares float32 adds with an error of a few units in the last place
SPAN = 1 << 20  # numbers in a block when a center is subtracted: with shorter blocks torch's threads cost too much
SMALLEST = 1e-12  # the least norm whose squares float32 can hold


def row_norms(rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None = None) -> Float[Tensor, " n"]:
    """Euclidean norm of every row (minus `center`), in float64; for float32 rows exact to about float32."""
    rows = rows.detach()
    if not _can_use_float32(rows) or not (center is None or center.dtype == rows.dtype):
        return _float64_norms(rows, center)
    norms = _float32_norms(rows, center)
    for i in (~(norms.isfinite() & (norms > SMALLEST))).nonzero().flatten().tolist():
        norms[i] = _float64_norms(rows[i : i + 1], center)[0]
    return norms


def rescale_rows(rows: Float[Tensor, "n k"], factors: Float[Tensor, " n"]) -> Float[Tensor, "n k"]:
    """Multiplies every row by its factor, which may be any finite float64."""
    if rows.dtype in HALF:
        return _rescale_half(rows, factors)
    largest = torch.finfo(rows.dtype).max
    return rows * factors.clamp(-largest, largest).to(rows.dtype)[:, None]


def clip_rows(rows: Float[Tensor, "n k"], norms: Float[Tensor, " n"], max_norm: float) -> Float[Tensor, "n k"]:
    """Shortens rows whose norm exceeds `max_norm` to it; the given norms may be those of a part of the columns."""
    return rescale_rows(rows, torch.where(norms > max_norm, max_norm / norms, 1.0))


def _rescale_half(rows: Float[Tensor, "n k"], factors: Float[Tensor, " n"]) -> Float[Tensor, "n k"]:
    """In float32 one block at a time: a factor rounded to half precision would change the norm of the row."""
    largest = torch.finfo(torch.float32).max
    column = factors.clamp(-largest, largest).float()[:, None]
    result = torch.empty_like(rows)
    for block, target in zip(split_columns(rows), split_columns(result), strict=True):
        target.copy_(block.float().mul_(column))
    return result


def largest_magnitudes(
    rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None = None
) -> Float[Tensor, "n 1"] | None:
    """What to divide rows (minus `center`) by, so that no square over- or underflows; None if not float64."""
    if rows.dtype != torch.float64:
        return None
    largest = torch.zeros(len(rows), 1, dtype=torch.float64, device=rows.device)
    for wide in float64_blocks(rows, center):
        largest = torch.maximum(largest, wide.abs_().amax(dim=1, keepdim=True))
    return torch.where(largest > 0, largest, 1)


def _can_use_float32(rows: Float[Tensor, "n k"]) -> bool:
    """Elsewhere float32 gains nothing, and float32 sums across memory are much less exact."""
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.stride(1) == 1


def _float64_norms(rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None) -> Float[Tensor, " n"]:
    def measure(some: slice) -> Tensor:
        scale = largest_magnitudes(rows[some], center)
        total = torch.zeros(len(rows[some]), dtype=torch.float64, device=rows.device)
        for wide in float64_blocks(rows[some], center):
            total += torch.linalg.vector_norm(wide if scale is None else wide.div_(scale), dim=1).square_()
        return total.sqrt_() if scale is None else total.sqrt_() * scale[:, 0]

    return torch.cat(list(map_in_threads(measure, row_ranges(rows))))


def _float32_norms(rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None) -> Float[Tensor, " n"]:
    """Squares float32 numbers in float32, one piece at a time: wrong where the squares over- or underflow."""
    if center is None:
        return _sum_squares(rows).sqrt_()
    step = max(PIECE, SPAN // max(1, len(rows)) // PIECE * PIECE)
    buffer = rows.new_empty(len(rows) * min(step, rows.shape[1]))
    total = rows.new_zeros(len(rows), dtype=torch.float64)
    for block, middle in zip(torch.split(rows, step, dim=1), torch.split(center.detach(), step), strict=True):
        total += _sum_squares(torch.sub(block, middle, out=buffer[: block.numel()].view_as(block)))
    return total.sqrt_()


def _sum_squares(rows: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    whole = rows.shape[1] // PIECE * PIECE
    pieces = torch.linalg.vector_norm(torch.unflatten(rows[:, :whole], 1, (whole // PIECE, PIECE)), dim=2).double()
    rest: Tensor = torch.linalg.vector_norm(rows[:, whole:], dim=1).double()
    return rest.square_().add_(pieces.square_().sum(dim=1))
