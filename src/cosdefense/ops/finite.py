"""Checks for NaN and infinity."""

from __future__ import annotations

import math

from jaxtyping import Bool, Float
from torch import Tensor

from .blocks import column_ranges, split_columns
from .parallel import map_in_threads


def finite_rows(rows: Float[Tensor, "n k"]) -> Bool[Tensor, " n"]:
    """Which rows hold neither NaN nor infinity.

    A finite sum proves that all numbers are finite. Where the sum is not (it may have overflowed), the numbers
    themselves are checked.
    """
    finite = rows.sum(dim=1).isfinite()
    if bool(finite.all()):
        return finite
    for i in (~finite).nonzero().flatten().tolist():
        finite[i] = all(bool(block.isfinite().all()) for block in split_columns(rows[i : i + 1]))
    return finite


def surely_count(rows: Float[Tensor, "n k"], weights: Float[Tensor, " n"]) -> bool:
    """Whether certainly every row is finite and no weight is zero: two kernels and one wait for a GPU."""
    # A sum that is not finite, or a weight of zero, gives a quotient that is not finite.
    return bool((rows.sum(dim=1) / weights).cpu().isfinite().all())


def stays_finite(vector: Float[Tensor, " k"], step: Float[Tensor, " k"]) -> bool:
    """Whether every number of `vector + step` is finite."""

    def check(where: slice) -> bool:
        pairs = zip(split_columns(vector[None, where]), split_columns(step[None, where]), strict=True)
        return all(_is_finite(one + other) for one, other in pairs)

    return all(map_in_threads(check, column_ranges(vector[None])))


def _is_finite(block: Float[Tensor, "1 k"]) -> bool:
    return math.isfinite(float(block.sum())) or bool(block.isfinite().all())
