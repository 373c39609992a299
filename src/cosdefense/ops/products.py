"""Products of all rows with all rows, relative to one of them.

In float64. Products of float32 are faster, but on rows whose roundings all go one way (constant
ones, say) they are off by more than Krum's scores differ: benchmarks/aggregation.py shows by how much.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .blocks import wide_blocks

PANEL = 32  # rows multiplied at a time with those below them: half of a symmetric matrix need not be computed
LARGEST = 1e155  # of a float64 difference: beyond, its square is infinite either way


@dataclass(frozen=True)
class Products:
    """⟨x − c, y − c⟩ for every two rows, in float64, where c is one of them."""

    center: int
    values: Float[Tensor, "n n"]


def products_around(rows: Float[Tensor, "n k"], center: int, members: Int[Tensor, " m"] | None = None) -> Products:
    """The products of all rows, or of some; `center` counts among those."""
    origin = rows[center] if members is None else rows[members[center]]
    n = len(rows) if members is None else len(members)
    total = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
    for wide in wide_blocks(rows, origin, members):
        if rows.dtype == torch.float64:
            wide.clamp_(-LARGEST, LARGEST)
        _add_products(total, wide)
    return Products(center, _mirrored(total))


def _add_products(total: Float[Tensor, "n n"], block: Float[Tensor, "n k"]) -> None:
    """Adds ⟨x, y⟩ to the upper half of `total`."""
    for start in range(0, len(block), PANEL):
        total[start : start + PANEL, start:].addmm_(block[start : start + PANEL], block[start:].T)


def _mirrored(total: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    return total.triu() + total.triu(1).T
