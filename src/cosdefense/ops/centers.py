"""Rules that weigh whole rows. Their iterations need the products of rows only; the rows are read once or twice."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import fresh, wide_blocks
from .distances import distances_and_products
from .norms import row_norms
from .products import products_around

SMALLEST = 1e-30  # of a weight that float32 still multiplies well; a weight of a row of 1e38 may be smaller
NEAR_ENOUGH = 100.0  # times the smallest typical squared distance: products around such a row lose two digits of 16


def weighted_sum(rows: Float[Tensor, "n k"], weights: Float[Tensor, " n"]) -> Float[Tensor, " k"]:
    """Σ wᵢ rowᵢ. Rows of weight 0 do not count."""
    rows, counting = rows.detach(), weights.nonzero().flatten()
    if len(counting) == 1:  # Krum's choice: the others need not be read
        return torch.mul(rows[counting[0]], weights[counting[0]].to(rows.dtype), out=fresh(rows.shape[1], rows))
    narrow = weights.to(rows.dtype)
    if rows.dtype == torch.float64 or not bool(((weights != 0) & (weights.abs() < SMALLEST)).any()):
        return torch.mv(rows.T, narrow, out=fresh(rows.shape[1], rows))
    return torch.cat([(weights.double() @ wide).to(rows.dtype) for wide in wide_blocks(rows)])


def geometric_median(rows: Float[Tensor, "n k"], steps: int = 100, smoothing: float = 1e-6) -> Float[Tensor, " k"]:
    """The point with the smallest sum of distances to the rows, by Weiszfeld's iteration.

    The point is Σ wᵢ rowᵢ at every step, and its distances follow from the products of the rows, so only
    the weights are iterated. A row nearer than `smoothing` times the median distance counts as if it were
    that far away, or the iteration would stop at the first row it hits.
    """
    return weighted_sum(rows, _weiszfeld(rows, steps, smoothing))


def clipped_mean(
    rows: Float[Tensor, "n k"], center: Float[Tensor, " k"] | None, radius: float, steps: int = 1
) -> Float[Tensor, " k"]:
    """`center` (None: zero) moved by the mean of the ways to the rows, each shortened to `radius`; `steps` times."""
    for _ in range(steps):
        shares = (radius / row_norms(rows, center).clamp_min(radius)) / len(rows)
        moved = weighted_sum(rows, shares)
        center = moved if center is None else moved.add_(center, alpha=1 - float(shares.sum()))
    assert center is not None, f"steps must be at least 1, got {steps}"
    return center


def _weiszfeld(rows: Float[Tensor, "n k"], steps: int, smoothing: float) -> Float[Tensor, " n"]:
    distances, products = distances_and_products(rows)
    distances = distances.cpu()  # from here on everything is small, and a GPU would be asked a hundred times
    typical = distances.sort(dim=1).values[:, len(rows) // 2]
    center = int(typical.argmin())
    if bool(typical[products.center] > NEAR_ENOUGH * typical[center]):  # an outlier: relative to it the rest cancels
        products = products_around(rows, center)
    values = products.values.cpu()
    squares = values.diagonal().clone()
    countless = squares.isinf()  # so far away that they pull with no force at all
    values = values.masked_fill(countless[:, None] | countless, 0)
    # From the mean of the inner half: from farther away, outliers would cost many steps. Those in the midst may be
    # two, each as far from the other; then both have a say.
    near = (distances[typical == typical[center]] <= typical[center]).double().sum(dim=0).masked_fill(countless, 0)
    weights = near / near.sum()
    for _ in range(steps):
        toward = values @ weights
        lengths = (squares - 2 * toward + weights @ toward).clamp_min(0).sqrt()
        pull = 1 / lengths.clamp_min(smoothing * lengths[~countless].median()).clamp_min(
            1e-150
        )  # identical rows: nobody pulls
        previous, weights = weights, pull / pull.sum()
        if bool((weights - previous).abs().max() < 1e-12):
            break
    return weights.to(rows.device)
