"""Distances between all rows by matrix products, which are an order of magnitude faster than differences.

‖x‖² + ‖y‖² − 2⟨x, y⟩ cancels for nearly identical rows and makes the choice of the nearest one a matter
of luck. Three things keep it honest: long sums run in float64; the rows are taken relative to one of them,
so that what they have in common is gone before anything is squared; and pairs that are much closer to each
other than to that center are computed again, relative to one of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .products import LARGEST, Products, products_around

# A squared distance is believed when it is at least this share of ‖x‖² + ‖y‖². Products are off by at most
# (columns per block + blocks + 4) · 2⁻⁵³ of that sum, 6e-12 for ten rows of eleven million: 6e-9 of what is
# believed at worst, and in practice, where roundings go both ways, about 1e-13.
BELIEVED = 1e-3


def squared_distances(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Squared Euclidean distance between every two rows, in float64; identical rows have identical distances."""
    distances, _ = distances_and_products(rows)
    return distances


def distances_and_products(rows: Float[Tensor, "n k"]) -> tuple[Float[Tensor, "n n"], Products]:
    """Squared distances, and the products of all rows that they were made of."""
    products = products_around(rows, _middle(rows, _everybody(rows)))
    return _settled(rows, *_distances(products)), products


def _settled(
    rows: Float[Tensor, "n k"], total: Float[Tensor, "n n"], doubtful: Bool[Tensor, "n n"]
) -> Float[Tensor, "n n"]:
    """The distances, those in doubt computed again around a center of their own."""
    groups = list(_connected(doubtful, _everybody(rows)))
    while groups:
        members = groups.pop()
        found, doubtful = _distances(products_around(rows, _middle(rows, members), members))
        total[members[:, None], members] = found
        groups += _connected(doubtful, members)  # without the center: a group gets smaller every time
    return _alike_for_twins(total)


def _distances(products: Products) -> tuple[Float[Tensor, "m m"], Bool[Tensor, "m m"]]:
    """Squared distances, and which of them are not to be believed."""
    lengths, center = products.values.diagonal(), products.center
    sums = lengths[:, None] + lengths
    found = sums - 2 * products.values
    found[center] = found[:, center] = lengths
    found.fill_diagonal_(0)
    doubtful = ~(found >= BELIEVED * sums)  # so that NaN, from ∞ − ∞, is doubtful too
    doubtful[center] = doubtful[:, center] = False
    return found, doubtful.fill_diagonal_(False)


def _everybody(rows: Float[Tensor, "n k"]) -> Int[Tensor, " n"]:
    return torch.arange(len(rows), device=rows.device)


def _middle(rows: Float[Tensor, "n k"], members: Int[Tensor, " m"]) -> int:
    """The member whose beginning is of median length: in the midst of the others, whatever the outliers are."""
    beginnings = rows[members, :1024].double().clamp(-LARGEST, LARGEST)
    return int(beginnings.square().sum(dim=1).argsort()[len(members) // 2])


def _connected(pairs: Bool[Tensor, "m m"], members: Int[Tensor, " m"]) -> Iterator[Int[Tensor, " g"]]:
    """The groups of two and more members that hang together by these pairs."""
    if not bool(pairs.any()):
        return
    reached = pairs.double()
    for _ in range(len(pairs).bit_length()):
        reached = ((reached @ reached + reached) > 0).double()
    for first in sorted(set(reached.argmax(dim=1)[pairs.any(dim=1)].tolist())):
        yield members[reached[first].nonzero().flatten()]


def _alike_for_twins(distances: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Identical rows get the distances of the first of them: where a row stands may move a product by a bit."""
    first = (distances == 0).to(torch.uint8).argmax(dim=1)
    return distances[first][:, first]
