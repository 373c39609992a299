"""Distances between all rows: between few by differences, between many by matrix products, which are faster then.

‖x‖² + ‖y‖² − 2⟨x, y⟩ cancels for nearly identical rows and makes the choice of the nearest one a matter
of luck. Three things keep it honest: long sums run in float64; the rows are taken relative to one of them,
so that what they have in common is gone before anything is squared; and pairs that are much closer to each
other than to that center are computed again, relative to one of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pdist

from .blocks import stretches, wide_blocks
from .products import LARGEST, Products, products_around
from .threads import in_threads

FEW = 20  # rows: up to so many, differences are faster than products, for which BLAS wants larger matrices

# A squared distance is believed when it is at least this share of ‖x‖² + ‖y‖². Products are off by at most
# (columns per block + blocks + 4) · 2⁻⁵³ of that sum, 6e-12 for ten rows of eleven million: 6e-9 of what is
# believed at worst, and in practice, where roundings go both ways, about 1e-13.
BELIEVED = 1e-3


def squared_distances(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Squared Euclidean distance between every two rows, in float64; identical rows have identical distances."""
    return _by_differences(rows) if _are_few(rows) else distances_and_products(rows)[0]


def distances_and_products(rows: Float[Tensor, "n k"]) -> tuple[Float[Tensor, "n n"], Products]:
    """Squared distances, and the products of all rows around one of them."""
    if _are_few(rows):
        distances = _by_differences(rows)
        return distances, _products_from(distances)
    products = products_around(rows, _middle(rows, _everybody(rows)))
    return _settled(rows, *_distances(products)), products


def _are_few(rows: Float[Tensor, "n k"]) -> bool:
    return rows.device.type == "cpu" and len(rows) <= FEW


def _by_differences(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Nothing cancels here, and no bit depends on where a row stands."""
    rows, pairs = rows.detach(), torch.triu_indices(len(rows), len(rows), 1)

    def partial(where: slice) -> Tensor:
        total = torch.zeros(pairs.shape[1], dtype=torch.float64)
        for wide in wide_blocks(rows[:, where]):
            total += pdist(wide).square_()
        return total

    found = reduce(Tensor.add_, in_threads(partial, stretches(rows)))
    distances = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    distances[pairs[0], pairs[1]] = distances[pairs[1], pairs[0]] = found
    return distances


def _products_from(distances: Float[Tensor, "n n"]) -> Products:
    """2 ⟨x − c, y − c⟩ = ‖x − c‖² + ‖y − c‖² − ‖x − y‖², where c is the row nearest to half of the others."""
    center = int(distances.sort(dim=1).values[:, len(distances) // 2].argmin())
    halves = distances.clamp_max(torch.finfo(torch.float64).max) / 2
    values = halves[center][:, None] + halves[center] - halves
    values.diagonal().copy_(distances[center])  # which may be infinite
    return Products(center, values)


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
