"""The norms of updates. Updates are computed in blocks and never held in memory as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..ops.parallel import map_in_threads
from .arrays import NDArray
from .reasons import BadReply, Reason
from .sent_model import SentModel

BLOCK = 1 << 17  # numbers: 512 KiB of float32, which stay in the cache
PIECE = 1 << 12  # numbers whose squares are added in their own precision; these sums are added in float64
SMALLEST = 1e-12  # the least norm whose squares float32 can hold
REPLIES_PER_CALL = 8  # of a thread


def measure_updates(model: SentModel, replies: Sequence[Mapping[str, NDArray]]) -> list[float | BadReply]:
    """The norm of the trainable part of every reply minus the model, or why the reply does not count.

    A reply with NaN or infinity in any tensor, buffers included, does not count. Neither does a reply whose difference
    to the model overflows. The norm of a float64 model may be infinite.
    """
    starts = range(0, len(replies), REPLIES_PER_CALL)

    def measure(start: int) -> list[float | BadReply]:
        buffer = np.empty(min(BLOCK, model.layout.size), model.params.numpy().dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # the results are checked
            return [_measure_update(model, arrays, buffer) for arrays in replies[start : start + REPLIES_PER_CALL]]

    return [norm for norms in map_in_threads(measure, starts) for norm in norms]


def _measure_update(model: SentModel, arrays: Mapping[str, NDArray], buffer: NDArray) -> float | BadReply:
    total = 0.0
    for name, where in model.layout.slices.items():
        squares = sum(map(_sum_squares, _compute_differences(model, name, arrays, buffer)))
        # Squares of finite numbers may overflow, so the numbers themselves decide.
        if not math.isfinite(squares) and not _is_finite(model, name, arrays, buffer):
            return BadReply(Reason.NOT_FINITE, f"{name} or its difference to the model holds NaN or infinity")
        if where.stop <= model.layout.n_trainable:
            total += squares
    return math.sqrt(total) if SMALLEST**2 < total < math.inf else _measure_extreme_update(model, arrays, buffer)


def _compute_differences(
    model: SentModel, name: str, arrays: Mapping[str, NDArray], buffer: NDArray
) -> Iterator[NDArray]:
    """One tensor minus the model's, one block at a time, all in the same buffer."""
    values, own = arrays[name].reshape(-1), model.params.numpy()[model.layout.slices[name]]
    for start in range(0, len(own), BLOCK):
        some = own[start : start + BLOCK]
        yield np.subtract(values[start : start + BLOCK], some, out=buffer[: len(some)])


def _sum_squares(numbers: NDArray) -> float:
    """Infinite or NaN where squares overflow, too small where they underflow."""
    whole = len(numbers) // PIECE * PIECE
    rows, rest = numbers[:whole].reshape(-1, 1, PIECE), numbers[whole:]
    # Products of short rows and columns: for a long `dot`, BLAS would start threads of its own.
    return float(np.matmul(rows, rows.transpose(0, 2, 1)).sum(dtype=np.float64)) + float(rest @ rest)


def _is_finite(model: SentModel, name: str, arrays: Mapping[str, NDArray], buffer: NDArray) -> bool:
    return all(bool(np.isfinite(block).all()) for block in _compute_differences(model, name, arrays, buffer))


def _measure_extreme_update(model: SentModel, arrays: Mapping[str, NDArray], buffer: NDArray) -> float:
    """In float64, and relative to the largest number of a block: no square over- or underflows."""
    norm = 0.0
    for name in model.layout.trainable:
        for block in _compute_differences(model, name, arrays, buffer):
            largest = float(np.abs(block).max(initial=0))
            if largest > 0:
                norm = math.hypot(norm, largest * math.sqrt(_sum_squares(block.astype(np.float64) / largest)))
    return norm
