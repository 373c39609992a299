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


def measure_updates(model: SentModel, replies: Sequence[Mapping[str, NDArray]]) -> list[float | BadReply]:
    """The norm of the trainable part of every reply minus the model, or why the reply does not count.

    A reply with NaN or infinity in any tensor, buffers included, does not count. Neither does a reply whose difference
    to the model overflows. The norm of a float64 model may be infinite.
    """
    start = model.params.numpy()
    tensors = [(name, start[where], name in model.layout.trainable) for name, where in model.layout.slices.items()]

    def measure(some: slice) -> list[float | BadReply]:
        buffer = np.empty(min(BLOCK, len(start)), start.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # the results are checked
            return [_measure_update(arrays, tensors, buffer) for arrays in replies[some]]

    return [norm for norms in map_in_threads(measure, model.split(len(replies))) for norm in norms]


Tensors = Sequence[tuple[str, NDArray, bool]]  # of the model: name, numbers, whether it is trained


def _measure_update(arrays: Mapping[str, NDArray], tensors: Tensors, buffer: NDArray) -> float | BadReply:
    total = 0.0
    for name, own, is_trained in tensors:
        squares = sum(map(_sum_squares, _compute_differences(arrays[name], own, buffer)))
        # Squares of finite numbers may overflow, so the numbers themselves decide.
        if not math.isfinite(squares) and not _is_finite(arrays[name], own, buffer):
            return BadReply(Reason.NOT_FINITE, f"{name} or its difference to the model holds NaN or infinity")
        total += squares if is_trained else 0.0
    return math.sqrt(total) if SMALLEST**2 < total < math.inf else _measure_extreme_update(arrays, tensors, buffer)


def _compute_differences(array: NDArray, own: NDArray, buffer: NDArray) -> Iterator[NDArray]:
    """A tensor minus the model's, one block at a time, all in the same buffer."""
    values = array.reshape(-1)
    for start in range(0, len(own), BLOCK):
        some = own[start : start + BLOCK]
        yield np.subtract(values[start : start + BLOCK], some, out=buffer[: len(some)])


def _sum_squares(numbers: NDArray) -> float:
    """Infinite or NaN where squares overflow, too small where they underflow."""
    whole = len(numbers) // PIECE * PIECE
    rows, rest = numbers[:whole].reshape(-1, 1, PIECE), numbers[whole:]
    # Products of short rows and columns: for a long `dot`, BLAS would start threads of its own.
    return float(np.matmul(rows, rows.transpose(0, 2, 1)).sum(dtype=np.float64)) + float(rest @ rest)


def _is_finite(array: NDArray, own: NDArray, buffer: NDArray) -> bool:
    return all(bool(np.isfinite(block).all()) for block in _compute_differences(array, own, buffer))


def _measure_extreme_update(arrays: Mapping[str, NDArray], tensors: Tensors, buffer: NDArray) -> float:
    """In float64, and relative to the largest number of a block: no square over- or underflows."""
    norm = 0.0
    for name, own in ((name, own) for name, own, is_trained in tensors if is_trained):
        for block in _compute_differences(arrays[name], own, buffer):
            largest = float(np.abs(block).max(initial=0))
            if largest > 0:
                norm = math.hypot(norm, largest * math.sqrt(_sum_squares(block.astype(np.float64) / largest)))
    return norm
