"""Arrays from strangers: believed only if their bytes say exactly what is expected, before anything is allocated."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy

from .reasons import BadReply, Reason

NDArray = np.ndarray[Any, np.dtype[Any]]
MAX_HEADER = 4096  # bytes; numpy writes 128
SERIALIZATION = "numpy.ndarray"  # the only kind that Flower itself writes


@dataclass(frozen=True)
class Form:
    """What an array must look like."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def forms_of(arrays: Mapping[str, NDArray]) -> dict[str, Form]:
    return {name: Form(array.shape, array.dtype) for name, array in arrays.items()}


def own_arrays(record: ArrayRecord) -> dict[str, NDArray]:
    """The server's own model: trusted, so read as Flower reads it."""
    return {name: np.array(array.numpy()) for name, array in record.items()}


def read_arrays(record: ArrayRecord, forms: Mapping[str, Form]) -> dict[str, NDArray]:
    """A client's arrays, in the order of the model, as views of the bytes that came in."""
    if set(record) != set(forms):
        raise BadReply(Reason.KEYS, f"needs the arrays of the model, {_difference(set(record), set(forms))}")
    return {name: read_array(record[name], form, name) for name, form in forms.items()}


def read_array(array: Array, form: Form, name: str) -> NDArray:
    """One array of exactly this form, with finite numbers."""
    if array.stype != SERIALIZATION:
        raise BadReply(Reason.FORMAT, f"{name} needs serialization {SERIALIZATION}, got {array.stype!r:.40}")
    stream = io.BytesIO(array.data[:MAX_HEADER])
    shape, fortran, dtype = _header(stream, name)
    if shape != form.shape or tuple(array.shape) != form.shape:
        raise BadReply(Reason.SHAPE, f"{name} needs shape {form.shape}, got {shape!r:.80}")
    if dtype != form.dtype or array.dtype != str(form.dtype):
        raise BadReply(Reason.DTYPE, f"{name} needs {form.dtype}, got {dtype!r:.40}")
    start = stream.tell()
    if len(array.data) - start != form.n_bytes:
        raise BadReply(Reason.LENGTH, f"{name} needs {form.n_bytes} bytes, got {len(array.data) - start}")
    values = np.frombuffer(array.data, form.dtype, offset=start).reshape(form.shape, order="F" if fortran else "C")
    if np.issubdtype(form.dtype, np.inexact) and not bool(np.isfinite(values).all()):
        raise BadReply(Reason.NOT_FINITE, f"{name} holds NaN or infinity")
    return values


def _header(stream: io.BytesIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """What the bytes say of themselves. Reads text, allocates nothing."""
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise BadReply(Reason.FORMAT, f"{name} needs the npy format 1.0 or 2.0, got {version}")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream, max_header_size=MAX_HEADER)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise BadReply(Reason.FORMAT, f"{name} has no readable npy header: {error!s:.80}") from error
    return shape, fortran, dtype


def _difference(got: set[str], wanted: set[str]) -> str:
    return f"{len(wanted - got)} missing, {len(got - wanted)} unknown"
