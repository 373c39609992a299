"""Squared distances between all rows: of few rows from differences, of many from inner products, which is faster.

‖x‖² + ‖y‖² − 2⟨x, y⟩ cancels for nearly identical rows, so that rounding would choose the nearest one. Three things
prevent this. Long sums run in float64. The rows are taken relative to one of them, so that their common part is
gone before anything is squared. Pairs that are much closer to each other than to that center are computed again,
relative to a center among themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pdist

from .blocks import column_ranges, float64_blocks
from .inner_products import LARGEST, InnerProducts, products_around
from .parallel import map_in_threads

FEW = 20  # up to this many rows differences are faster: BLAS needs larger matrices

# A squared distance is reliable when it is at least this share of ‖x‖² + ‖y‖². The error of inner products is at most
# (columns per block + blocks + 4) · 2⁻⁵³ of that sum, 6e-12 for ten rows of eleven million columns. That is 6e-9 of a
# reliable distance at worst, and about 1e-13 in practice, where roundings go both ways.
RELIABLE_SHARE = 1e-3


def squared_distances(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Squared Euclidean distance between every two rows, in float64; identical rows have identical distances."""
    return _subtract_rows(rows) if _has_few_rows(rows) else distances_and_products(rows)[0]


def manhattan_distances(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """Σ |x − y| for every two rows, in float64."""
    return _subtract_rows(rows, power=1)


def distances_and_products(rows: Float[Tensor, "n k"]) -> tuple[Float[Tensor, "n n"], InnerProducts]:
    """Squared distances, and the inner products of all rows around one of them."""
    if _has_few_rows(rows):
        distances = _subtract_rows(rows)
        return distances, _products_from_distances(distances)
    products = products_around(rows, _pick_center(rows, _all_indices(rows)))
    return _recompute_unreliable(rows, *_distances_from_products(products)), products


def _has_few_rows(rows: Float[Tensor, "n k"]) -> bool:
    return rows.device.type == "cpu" and len(rows) <= FEW


def _subtract_rows(rows: Float[Tensor, "n k"], power: int = 2) -> Float[Tensor, "n n"]:
    """Σ |x − y|^power from differences: nothing cancels, and no bit depends on the order of the rows."""
    rows, pairs = rows.detach(), torch.triu_indices(len(rows), len(rows), 1, device=rows.device)

    def measure(where: slice) -> Tensor:
        total = torch.zeros(pairs.shape[1], dtype=torch.float64, device=rows.device)
        for wide in float64_blocks(rows[:, where]):
            total += pdist(wide, power).pow_(power)
        return total

    distances = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    total = reduce(Tensor.add_, map_in_threads(measure, column_ranges(rows)))
    distances[pairs[0], pairs[1]] = distances[pairs[1], pairs[0]] = total
    return distances


def _products_from_distances(distances: Float[Tensor, "n n"]) -> InnerProducts:
    """2 ⟨x − c, y − c⟩ = ‖x − c‖² + ‖y − c‖² − ‖x − y‖², where c is the row nearest to half of the others."""
    center = int(distances.sort(dim=1).values[:, len(distances) // 2].argmin())
    halves = distances.clamp_max(torch.finfo(torch.float64).max) / 2
    values = halves[center][:, None] + halves[center] - halves
    values.diagonal().copy_(distances[center])  # which may be infinite
    return InnerProducts(center, values)


def _recompute_unreliable(
    rows: Float[Tensor, "n k"], distances: Float[Tensor, "n n"], unreliable: Bool[Tensor, "n n"]
) -> Float[Tensor, "n n"]:
    """Computes unreliable distances again, each connected group of them around a center in the group."""
    groups = list(_connected_groups(unreliable, _all_indices(rows)))
    while groups:
        members = groups.pop()
        result, unreliable = _distances_from_products(products_around(rows, _pick_center(rows, members), members))
        distances[members[:, None], members] = result
        groups += _connected_groups(unreliable, members)  # without the center: a group shrinks every time
    return _equalize_identical_rows(distances)


def _distances_from_products(products: InnerProducts) -> tuple[Float[Tensor, "m m"], Bool[Tensor, "m m"]]:
    """Squared distances, and which of them are unreliable."""
    squares, center = products.values.diagonal(), products.center
    sums = squares[:, None] + squares
    distances = torch.sub(sums, products.values, alpha=2)
    distances[center] = distances[:, center] = squares
    distances.fill_diagonal_(0)
    unreliable = (distances >= sums.mul_(RELIABLE_SHARE)).logical_not_()  # NaN, from ∞ − ∞, is unreliable too
    unreliable[center] = unreliable[:, center] = False
    return distances, unreliable.fill_diagonal_(False)


def _all_indices(rows: Float[Tensor, "n k"]) -> Int[Tensor, " n"]:
    return torch.arange(len(rows), device=rows.device)


def _pick_center(rows: Float[Tensor, "n k"], members: Int[Tensor, " m"]) -> int:
    """The member whose first columns have the median norm: it lies among the others, whatever the outliers are."""
    beginnings = rows[members, :1024].double().clamp(-LARGEST, LARGEST)
    return int(beginnings.square().sum(dim=1).argsort()[len(members) // 2])


def _connected_groups(pairs: Bool[Tensor, "m m"], members: Int[Tensor, " m"]) -> Iterator[Int[Tensor, " g"]]:
    """The connected components, of two and more members, of the graph with these edges."""
    if not bool(pairs.any()):
        return
    reached = pairs.double()
    for _ in range(len(pairs).bit_length()):
        reached = ((reached @ reached + reached) > 0).double()
    for first in sorted(set(reached.argmax(dim=1)[pairs.any(dim=1)].tolist())):
        yield members[reached[first].nonzero().flatten()]


def _equalize_identical_rows(distances: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Gives identical rows the distances of the first of them: a row's position may change a product by a bit."""
    first = (distances == 0).to(torch.uint8).argmax(dim=1)
    if torch.equal(first, _all_indices(distances)):
        return distances
    return distances[first][:, first]
