"""Inner products of all rows with all rows, relative to one of them, in float64.

Float32 products are faster, but where all roundings go the same way (on constant rows, for example) their error
exceeds the differences between Krum's scores. benchmarks/aggregation.py measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .blocks import column_ranges, float64_blocks
from .parallel import map_in_threads

# Rows multiplied at a time with those below them, because only half of a symmetric matrix is computed. A multiple of
# the size of MKL's kernels: 32 is clearly slower.
PANEL = 24
LARGEST = 1e155  # float64 differences are clipped to it: the square of a larger one is infinite anyway


@dataclass(frozen=True)
class InnerProducts:
    """⟨x − c, y − c⟩ for every two rows, in float64, where c is one of the rows.

    Args:
        center: The index of the row c.
        values: The inner products.
    """

    center: int
    values: Float[Tensor, "n n"]


def products_around(rows: Float[Tensor, "n k"], center: int, members: Int[Tensor, " m"] | None = None) -> InnerProducts:
    """The inner products of all rows, or of the `members`; `center` is an index into those."""
    origin = rows[center] if members is None else rows[members[center]]
    return InnerProducts(center, inner_products(rows, origin, members))


def inner_products(
    rows: Float[Tensor, "n k"],
    origin: Float[Tensor, " k"] | None = None,
    members: Int[Tensor, " m"] | None = None,
    scale: Float[Tensor, "n 1"] | None = None,
) -> Float[Tensor, "m m"]:
    """⟨x, y⟩ for every two rows (or members), in float64, after subtracting `origin` or dividing each by its scale."""
    rows = rows.detach()
    n = len(rows) if members is None else len(members)

    def multiply(where: slice) -> Tensor:
        total = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
        for wide in float64_blocks(rows[:, where], None if origin is None else origin[where], members):
            if scale is not None:
                wide /= scale
            elif rows.dtype == torch.float64:
                wide.clamp_(-LARGEST, LARGEST)
            _add_lower_half(total, wide)
        return total

    return _mirror(reduce(Tensor.add_, map_in_threads(multiply, column_ranges(rows))))


def _add_lower_half(total: Float[Tensor, "n n"], block: Float[Tensor, "n k"]) -> None:
    """Adds ⟨x, y⟩ to the lower half of `total`."""
    for start in range(0, len(block), PANEL):
        total[start:, start : start + PANEL].addmm_(block[start:], block[start : start + PANEL].T)


def _mirror(total: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """In place: a round of many clients has large matrices."""
    upper = total.tril(-1).T
    return total.tril_().add_(upper)
