"""Vector maths shared by the parts; nothing here knows about clients or rounds.

Hostile rows may hold any finite number, so nothing here may cancel or return NaN for finite input.
Sums over coordinates run in float64 and in blocks: a float32 norm of eleven million coordinates is
off by 4e-4, and a float32 square overflows at 1e19. (Squared distances of float64 rows beyond 1e154
are infinite: as far away as can be, and still comparable.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 1 << 16  # columns handled at a time, so that float64 and sorted copies stay small
GPU_BLOCK = 1 << 25  # numbers handled at a time on a GPU, where it costs more to start a kernel than to run it


def fraction_of(fraction: float, n: int) -> int:
    """`floor(fraction * n)`, safe against 0.29 * 100 == 28.999999999999996."""
    return math.floor(fraction * n + 1e-9)


def row_norms(rows: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """Euclidean length of every row, in float64."""
    largest = torch.zeros(len(rows), 1, dtype=torch.float64, device=rows.device)
    for block in _blocks(rows):
        largest = torch.maximum(largest, block.abs().amax(dim=1, keepdim=True).double())
    scale = torch.where(largest > 0, largest, 1)  # first, so that no square over- or underflows
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for block in _blocks(rows):
        total += (block.double() / scale).square().sum(dim=1)
    return total.sqrt() * scale[:, 0]


def cosine(rows: Float[Tensor, "n k"], reference: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    """Cosine between every row and `reference`; 0 where either is zero."""
    cosines = (_unit(rows) * _unit(reference[None])).sum(dim=1)
    return cosines.clamp(-1, 1).to(rows.dtype)


def cosines(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Cosine between every two rows, in float64; 0 where either is zero."""
    largest = torch.stack([block.abs().amax(dim=1) for block in _blocks(rows)]).amax(dim=0).double()[:, None]
    scale = torch.where(largest > 0, largest, 1)  # first, so that no length over- or underflows
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in _blocks(rows):
        scaled = block.double() / scale
        total += scaled @ scaled.T
    lengths = total.diagonal().sqrt()
    lengths = torch.where(lengths > 0, lengths, 1)
    return (total / lengths[:, None] / lengths).clamp(-1, 1)


def rescaled(rows: Float[Tensor, "n k"], factors: Float[Tensor, " n"]) -> Float[Tensor, "n k"]:
    """Every row times its factor, which may be any finite float64."""
    largest = torch.finfo(rows.dtype).max
    return rows * factors.clamp(-largest, largest).to(rows.dtype)[:, None]


def squared_distances(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Squared Euclidean distance between every two rows, in float64.

    From differences, not from the Gram matrix: ‖x‖² + ‖y‖² − 2⟨x, y⟩ cancels for nearly identical
    rows and makes the choice of the nearest one a matter of luck.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in _blocks(rows):
        wide = block.double()
        total += torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def median(rows: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """Coordinate-wise median; for even n the mean of the two middle values."""
    low, high = (len(rows) - 1) // 2, len(rows) // 2
    # Halves are added, not sums halved: the sum of two finite values may overflow.
    return torch.cat([block[low] * 0.5 + block[high] * 0.5 for block in _sorted_blocks(rows)])


def trimmed_mean(rows: Float[Tensor, "n k"], trim: int) -> Float[Tensor, " k"]:
    """Coordinate-wise mean without the `trim` lowest and `trim` highest values.

    By sorting and slicing: "sum minus extremes" loses everything to one outlier of 1e30.
    """
    kept = (block[trim : len(rows) - trim] for block in _sorted_blocks(rows))
    return torch.cat([block.mean(dim=0, dtype=torch.float64).to(rows.dtype) for block in kept])


def min_max(scores: Float[Tensor, " n"], tolerance: float = 0.0) -> Float[Tensor, " n"]:
    """Scores mapped onto [0, 1]; all zero when they all lie within `tolerance` of each other."""
    low, high = scores.min(), scores.max()
    span = high - low
    return torch.where(span > tolerance, (scores - low) / torch.where(span > tolerance, span, 1), 0)


def mean_of(scores: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The mean, summed in order of size so that the order of the clients cannot move it by a bit."""
    return scores.sort().values.mean()


def std_of(scores: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The population standard deviation, independent of the clients' order like `mean_of`."""
    return mean_of((scores - mean_of(scores)).square()).sqrt()


def median_of(scores: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return median(scores[:, None])[0]


def _unit(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Every row scaled to length one (a zero row stays zero), in float64."""
    wide = rows.double()
    scale = wide.abs().amax(dim=1, keepdim=True)  # first, so that no square over- or underflows
    wide = wide / torch.where(scale > 0, scale, 1)
    length = wide.square().sum(dim=1, keepdim=True).sqrt()
    return wide / torch.where(length > 0, length, 1)


def _blocks(rows: Float[Tensor, "n k"]) -> Iterator[Tensor]:
    columns = BLOCK if rows.device.type == "cpu" else max(BLOCK, GPU_BLOCK // max(1, len(rows)))
    yield from torch.split(rows, columns, dim=1)


def _sorted_blocks(rows: Float[Tensor, "n k"]) -> Iterator[Tensor]:
    for block in _blocks(rows):
        yield block.sort(dim=0).values
