"""Rules that weight whole rows. Their iterations need inner products only; the rows are read once or twice."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import allocate, split_columns
from .distances import distances_and_products
from .inner_products import products_around
from .norms import row_norms
from .precision import HALF, compute_dtype
from .transfers import upload

SMALLEST_WEIGHT = 1e-30  # float32 multiplies larger weights exactly enough; a row of 1e38 may get a smaller one
NEAR = 100.0  # times the smallest typical squared distance: inner products around such a row lose two digits of 16


def weighted_sum(
    rows: Float[Tensor, "n k"], weights: Float[Tensor, " n"], dtype: torch.dtype | None = None
) -> Float[Tensor, " k"]:
    """Σ wᵢ rowᵢ, in `dtype` or else the rows' type. Rows of weight 0 do not count.

    The weights may be in the memory of the CPU, wherever the rows are.
    """
    rows, host = rows.detach(), weights.cpu()  # looked at there: one wait for a GPU instead of several
    counting, dtype = host.nonzero().flatten(), dtype or rows.dtype
    if len(counting) == 1:  # Krum keeps one row: do not read the others
        only = slice(int(counting[0]), int(counting[0]) + 1)
        rows, weights, host = rows[only], weights[only], host[only]
    tiny = rows.dtype != torch.float64 and bool(((host != 0) & (host.abs() < SMALLEST_WEIGHT)).any())
    weights = upload(weights, rows.device)
    if tiny or rows.dtype in HALF or dtype != rows.dtype:
        wide = weights.to(torch.float64 if tiny else compute_dtype(rows.dtype))
        return torch.cat([(wide @ block.to(wide.dtype)).to(dtype) for block in split_columns(rows)])
    out = allocate(rows.shape[1], rows.dtype, rows.device)
    if len(rows) == 1:
        return torch.mul(rows[0], weights[0].to(rows.dtype), out=out)
    return torch.mv(rows.T, weights.to(rows.dtype), out=out)


def mix_rows(rows: Float[Tensor, "n k"], mixing: Float[Tensor, "m n"]) -> Float[Tensor, "m k"]:
    """Row i of the result is Σ mixingᵢⱼ rowⱼ."""
    rows, wide = rows.detach(), mixing.to(compute_dtype(rows.dtype))
    if rows.dtype not in HALF:
        return wide @ rows
    result = rows.new_empty(len(mixing), rows.shape[1])
    for block, target in zip(split_columns(rows), split_columns(result), strict=True):
        target.copy_(wide @ block.to(wide.dtype))
    return result


def geometric_median(
    rows: Float[Tensor, "n k"], steps: int = 100, smoothing: float = 1e-6, n_columns: int | None = None
) -> Float[Tensor, " k"]:
    """The point with the smallest sum of distances to the rows, by Weiszfeld's iteration.

    The point is Σ wᵢ rowᵢ at every step, and its distances follow from the inner products of the rows, so only the
    weights are iterated. A row nearer than `smoothing` times the median distance counts as if it were that far away;
    otherwise the iteration would stop at the first row it hits. Distances use only the first `n_columns` columns; the
    weights apply to whole rows.
    """
    return weighted_sum(rows, _weiszfeld_weights(rows[:, :n_columns], steps, smoothing))


def clipped_mean(
    rows: Float[Tensor, "n k"],
    center: Float[Tensor, " k"] | None,
    radius: float,
    steps: int = 1,
    n_columns: int | None = None,
) -> Float[Tensor, " k"]:
    """Moves `center` (None: zero) by the mean of the differences to the rows, each clipped to norm `radius`.

    Repeated `steps` times. Norms use only the first `n_columns` columns; the clipping factors apply to whole rows.
    For half-precision rows the result is float32, so that a sequence of small steps does not get lost.
    """
    for _ in range(steps):
        origin = None if center is None else center[:n_columns]
        shares = (radius / row_norms(rows[:, :n_columns], origin).clamp_min(radius)) / len(rows)
        moved = weighted_sum(rows, shares, compute_dtype(rows.dtype))
        center = moved if center is None else moved.add_(center, alpha=1 - float(shares.sum()))
    assert center is not None, f"steps must be at least 1, got {steps}"
    return center


def _weiszfeld_weights(rows: Float[Tensor, "n k"], steps: int, smoothing: float) -> Float[Tensor, " n"]:
    distances, products = distances_and_products(rows)
    distances = distances.cpu()  # everything from here on is small; on a GPU each of the steps would wait for it
    typical = distances.sort(dim=1).values[:, len(rows) // 2]
    center = int(typical.argmin())
    if bool(typical[products.center] > NEAR * typical[center]):  # an outlier: relative to it the others cancel
        products = products_around(rows, center)
    values = products.values.cpu()
    squares = values.diagonal().clone()
    infinite = squares.isinf()  # so far away that their weight is zero
    values = values.masked_fill(infinite[:, None] | infinite, 0)
    # Start from the mean of the inner half: from farther away, outliers would cost many steps. Two rows may be equally
    # central; then both halves count.
    near = (distances[typical == typical[center]] <= typical[center]).double().sum(dim=0).masked_fill(infinite, 0)
    weights = near / near.sum()
    for _ in range(steps):
        toward = values @ weights
        norms = (squares - 2 * toward + weights @ toward).clamp_min(0).sqrt()
        floor = smoothing * norms[~infinite].median()
        inverse = 1 / norms.clamp_min(floor).clamp_min(1e-150)  # identical rows have a floor of 0
        previous, weights = weights, inverse / inverse.sum()
        if bool((weights - previous).abs().max() < 1e-12):
            break
    return weights.to(rows.device)
