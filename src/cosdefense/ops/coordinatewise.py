"""Rules that sort the values of every coordinate.

They do not subtract extremes from a sum: a single outlier of 1e30 would cancel all other digits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .blocks import allocate, split_columns
from .parallel import map_in_threads
from .precision import compute_dtype
from .sorting_networks import comparators

Row = Any  # one row of a block: a numpy array or a tensor
Rule = Callable[[Sequence[Row]], Row]  # combines the rows of a block whose columns are sorted

NETWORK = 64  # up to this many rows, comparing whole rows beats sorting columns
COLUMNS = 1 << 16  # columns per block at most, but not much fewer: threads would wait for the interpreter's lock
NUMBERS = 1 << 20  # numbers per block, roughly at most: limits the memory of a thread when there are many rows
PIECES = 8  # the columns are cut into at least this many blocks, so that threads finish together,
FEWEST = 1 << 12  # unless a block would get fewer columns than this: starting a thread would take longer


def median(rows: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """Coordinate-wise median; for even n the mean of the two middle values."""
    return _apply_to_sorted(rows, range((len(rows) - 1) // 2, len(rows) // 2 + 1), _average_ends)


def trimmed_mean(rows: Float[Tensor, "n k"], trim: int) -> Float[Tensor, " k"]:
    """Coordinate-wise mean without the `trim` lowest and `trim` highest values."""
    return _apply_to_sorted(rows, range(trim, len(rows) - trim), _average)


def sign_sum(rows: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """How many more positive than negative values every coordinate has."""
    blocks = (block.sign().sum(dim=0, dtype=torch.float32) for block in split_columns(rows.detach()))
    return torch.cat(list(blocks))


def kth_largest(values: Float[Tensor, " k"], rank: int) -> Float[Tensor, ""]:
    """The `rank`-th largest value."""
    wide = values.to(compute_dtype(values.dtype))  # a CPU selects among float16 values slowly or not at all
    return wide.kthvalue(len(values) - rank + 1).values.to(values.dtype)


def mean_near_median(rows: Float[Tensor, "n k"], keep: int, members: Int[Tensor, " m"]) -> Float[Tensor, " k"]:
    """Coordinate-wise mean of the `keep` members' values nearest to their median; of a tie, the lower."""

    def rule(ordered: Sequence[Row]) -> Row:
        # The nearest values are neighbors in sorted order. Their window moves up as long as the value above it is
        # nearer to the median than its lowest value; once it is not, it never is again.
        middle = _average_ends(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1])
        window = list(ordered[:keep])
        for low, high in enumerate(range(keep, len(ordered))):
            nearer = ordered[high] - middle < middle - ordered[low]
            window[low % keep] = _where(nearer, ordered[high], window[low % keep])
        return _average(window)

    return _apply_to_sorted(rows, range(len(members)), rule, members)


def _average_ends(ordered: Sequence[Row]) -> Row:
    # Add halves instead of halving the sum: the sum of two finite values may overflow.
    return ordered[0] * 0.5 + ordered[-1] * 0.5


def _average(ordered: Sequence[Row]) -> Row:
    total = ordered[0].double() if isinstance(ordered[0], Tensor) else ordered[0].astype(np.float64)
    for row in ordered[1:]:
        total += row
    return total / len(ordered)


def _where(condition: Row, one: Row, other: Row) -> Row:
    return torch.where(condition, one, other) if isinstance(condition, Tensor) else np.where(condition, one, other)


def _apply_to_sorted(
    rows: Float[Tensor, "n k"], wanted: range, rule: Rule, members: Int[Tensor, " m"] | None = None
) -> Float[Tensor, " k"]:
    """The rule applied to the `wanted` ranks of every coordinate (of the members)."""
    rows = rows.detach()
    compute = _apply_on_cpu if rows.device.type == "cpu" else _apply_on_gpu
    return compute(rows, wanted, rule, members).to(rows.dtype)


def _apply_on_gpu(
    rows: Float[Tensor, "n k"], wanted: range, rule: Rule, members: Int[Tensor, " m"] | None
) -> Float[Tensor, " k"]:
    dtype = compute_dtype(rows.dtype)
    chosen = (block if members is None else block[members] for block in split_columns(rows))
    ordered = (list(block.to(dtype).sort(dim=0).values[wanted.start : wanted.stop]) for block in chosen)
    return torch.cat([rule(block).to(dtype) for block in ordered])


def _apply_on_cpu(
    rows: Float[Tensor, "n k"], wanted: range, rule: Rule, members: Int[Tensor, " m"] | None
) -> Float[Tensor, " k"]:
    dtype = compute_dtype(rows.dtype)
    out = allocate(rows.shape[1], dtype, rows.device)
    result = out.numpy()
    n = len(rows) if members is None else len(members)
    exchanges = comparators(n, wanted) if n <= NETWORK else ()
    columns = min(COLUMNS, max(256, NUMBERS // n), max(FEWEST, rows.shape[1] // PIECES))

    def work(start: int) -> None:
        where = slice(start, start + columns)
        block = rows[:, where].to(dtype).numpy()
        block = block if members is None else block[members.numpy()]
        ordered = _sort_by_network(block, exchanges) if n <= NETWORK else _sort_columns(block)
        result[where] = rule(ordered[wanted.start : wanted.stop])

    deque(map_in_threads(work, range(0, rows.shape[1], columns)), maxlen=0)
    return out


def _sort_by_network(block: Any, exchanges: Sequence[tuple[int, int]]) -> list[Row]:
    """Compares whole rows: the lower values go to one, the higher values to the other."""
    ordered, spare = list(block.copy()), np.empty_like(block[0])
    for low, high in exchanges:
        np.minimum(ordered[low], ordered[high], out=spare)
        np.maximum(ordered[low], ordered[high], out=ordered[high])
        ordered[low], spare = spare, ordered[low]
    return ordered


def _sort_columns(block: Any) -> list[Row]:
    columns = np.array(block.T, order="C")  # always a copy: a single column is contiguous as it is
    columns.sort(axis=1)  # along memory, where numpy sorts with vector instructions
    return list(columns.T)
