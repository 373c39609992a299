"""Products of all rows with all rows, relative to one of them.

In float64. Products of float32 are faster, but on rows whose roundings all go one way (constant
ones, say) they are off by more than Krum's scores differ: benchmarks/aggregation.py shows by how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .blocks import stretches, wide_blocks
from .threads import in_threads

# Rows multiplied at a time with those below them: half of a symmetric matrix need not be computed. A multiple of what
# MKL's kernels take at once: 32 is clearly slower.
PANEL = 24
LARGEST = 1e155  # of a float64 difference: beyond, its square is infinite either way


@dataclass(frozen=True)
class Products:
    """⟨x − c, y − c⟩ for every two rows, in float64, where c is one of them."""

    center: int
    values: Float[Tensor, "n n"]


def products_around(rows: Float[Tensor, "n k"], center: int, members: Int[Tensor, " m"] | None = None) -> Products:
    """The products of all rows, or of some; `center` counts among those."""
    origin = rows[center] if members is None else rows[members[center]]
    return Products(center, products_of(rows, origin, members))


def products_of(
    rows: Float[Tensor, "n k"],
    origin: Float[Tensor, " k"] | None = None,
    members: Int[Tensor, " m"] | None = None,
    scale: Float[Tensor, "n 1"] | None = None,
) -> Float[Tensor, "m m"]:
    """⟨x, y⟩ for every two rows, or some, in float64; each less `origin` or divided by its scale first."""
    rows = rows.detach()
    n = len(rows) if members is None else len(members)

    def partial(where: slice) -> Tensor:
        total = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
        for wide in wide_blocks(rows[:, where], None if origin is None else origin[where], members):
            if scale is not None:
                wide /= scale
            elif rows.dtype == torch.float64:
                wide.clamp_(-LARGEST, LARGEST)
            _add_products(total, wide)
        return total

    return _mirrored(reduce(Tensor.add_, in_threads(partial, stretches(rows))))


def _add_products(total: Float[Tensor, "n n"], block: Float[Tensor, "n k"]) -> None:
    """Adds ⟨x, y⟩ to the lower half of `total`."""
    for start in range(0, len(block), PANEL):
        total[start:, start : start + PANEL].addmm_(block[start:], block[start : start + PANEL].T)


def _mirrored(total: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    return total.tril() + total.tril(-1).T
