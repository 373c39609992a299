"""Rules that put the values of every coordinate in order.

By sorting, not by subtracting extremes from a sum: that loses everything to one outlier of 1e30.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .blocks import blocks, fresh
from .sorting_networks import comparators
from .threads import in_threads

Row = Any  # one row of a block: a numpy array or a tensor
Rule = Callable[[Sequence[Row]], Row]  # what to make of the rows of a block whose columns are in order

NETWORK = 64  # up to so many rows, comparing whole rows beats sorting columns
COLUMNS = 1 << 16  # of a block at most: with fewer, threads meet at the interpreter's lock too often
NUMBERS = 1 << 20  # of a block at most, or nearly: what a thread needs stays small for many rows too

PIECES = 8  # to cut the columns into at least, so that threads finish together; but not for
FEWEST = 1 << 12  # columns, which take less time than a thread to start


def median(rows: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """Coordinate-wise median; for even n the mean of the two middle values."""
    return _in_order(rows, range((len(rows) - 1) // 2, len(rows) // 2 + 1), _middle)


def trimmed_mean(rows: Float[Tensor, "n k"], trim: int) -> Float[Tensor, " k"]:
    """Coordinate-wise mean without the `trim` lowest and `trim` highest values."""
    return _in_order(rows, range(trim, len(rows) - trim), _mean)


def mean_near_median(rows: Float[Tensor, "n k"], keep: int, members: Int[Tensor, " m"]) -> Float[Tensor, " k"]:
    """Coordinate-wise mean of the `keep` values of some rows that lie nearest to their median; of a tie, the lower."""

    def rule(ordered: Sequence[Row]) -> Row:
        # The nearest are neighbours in order. Their window moves up as long as the value above it
        # lies nearer to the median than its lowest; once it does not, it never does again.
        middle = _middle(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1])
        window = list(ordered[:keep])
        for low, high in enumerate(range(keep, len(ordered))):
            nearer = ordered[high] - middle < middle - ordered[low]
            window[low % keep] = _where(nearer, ordered[high], window[low % keep])
        return _mean(window)

    return _in_order(rows, range(len(members)), rule, members)


def _middle(ordered: Sequence[Row]) -> Row:
    # Halves are added, not sums halved: the sum of two finite values may overflow.
    return ordered[0] * 0.5 + ordered[-1] * 0.5


def _mean(ordered: Sequence[Row]) -> Row:
    total = ordered[0].double() if isinstance(ordered[0], Tensor) else ordered[0].astype(np.float64)
    for row in ordered[1:]:
        total += row
    return total / len(ordered)


def _where(choice: Row, one: Row, other: Row) -> Row:
    return torch.where(choice, one, other) if isinstance(choice, Tensor) else np.where(choice, one, other)


def _in_order(
    rows: Float[Tensor, "n k"], wanted: range, rule: Rule, members: Int[Tensor, " m"] | None = None
) -> Float[Tensor, " k"]:
    """The rule applied to the `wanted` ranks of every coordinate (of some rows)."""
    if rows.device.type != "cpu":
        chosen = (block if members is None else block[members] for block in blocks(rows))
        ordered = (list(block.sort(dim=0).values[wanted.start : wanted.stop]) for block in chosen)
        return torch.cat([rule(block).to(rows.dtype) for block in ordered])
    out = fresh(rows.shape[1], rows)
    values, found = rows.detach().numpy(), out.numpy()
    n = len(rows) if members is None else len(members)
    exchanges = comparators(n, wanted) if n <= NETWORK else ()
    columns = min(COLUMNS, max(256, NUMBERS // n), max(FEWEST, rows.shape[1] // PIECES))

    def work(start: int) -> None:
        where = slice(start, start + columns)
        block = values[:, where] if members is None else values[members.numpy(), where]
        ordered = _compared(block, exchanges) if n <= NETWORK else _sorted(block)
        found[where] = rule(ordered[wanted.start : wanted.stop])

    deque(in_threads(work, range(0, rows.shape[1], columns)), maxlen=0)
    return out


def _compared(block: Any, exchanges: Sequence[tuple[int, int]]) -> list[Row]:
    """Whole rows compared with each other, the lower values to one, the higher to the other."""
    ordered, spare = list(block.copy()), np.empty_like(block[0])
    for low, high in exchanges:
        np.minimum(ordered[low], ordered[high], out=spare)
        np.maximum(ordered[low], ordered[high], out=ordered[high])
        ordered[low], spare = spare, ordered[low]
    return ordered


def _sorted(block: Any) -> list[Row]:
    columns = np.ascontiguousarray(block.T)
    columns.sort(axis=1)  # along memory, where numpy sorts with vector instructions
    return list(columns.T)
