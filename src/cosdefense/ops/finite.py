"""Checks for NaN and infinity."""

from __future__ import annotations

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
    for i in (~finite).nonzero().flatten().tolist():
        finite[i] = all(bool(block.isfinite().all()) for block in split_columns(rows[i : i + 1]))
    return finite


def stays_finite(vector: Float[Tensor, " k"], step: Float[Tensor, " k"]) -> bool:
    """Whether every number of `vector + step` is finite."""

    def check(where: slice) -> bool:
        pairs = zip(split_columns(vector[None, where]), split_columns(step[None, where]), strict=True)
        return all(bool(finite_rows(one + other)[0]) for one, other in pairs)

    return all(map_in_threads(check, column_ranges(vector[None])))
