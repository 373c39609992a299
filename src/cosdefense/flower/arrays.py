"""Arrays from strangers: believed only if their bytes say exactly what is expected, before anything is allocated."""

from __future__ import annotations

import ast
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy

from .reasons import BadReply, Reason

NDArray = np.ndarray[Any, np.dtype[Any]]
MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}  # of the header's length, by version; 3.0 is for names in other scripts
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

    @cached_property
    def descr(self) -> object:
        return npy.dtype_to_descr(self.dtype)

    @cached_property
    def usual_header(self) -> bytes:
        """The bytes that numpy itself writes before such an array."""
        told = {"descr": self.descr, "fortran_order": False, "shape": self.shape}
        written = io.BytesIO()
        npy.write_array_header_1_0(written, told)
        return written.getvalue()


def forms_of(arrays: Mapping[str, NDArray]) -> dict[str, Form]:
    return {name: Form(array.shape, array.dtype) for name, array in arrays.items()}


def own_arrays(record: ArrayRecord) -> dict[str, NDArray]:
    """The server's own model: trusted, so read as Flower reads it."""
    return {name: np.asarray(array.numpy()) for name, array in record.items()}


def read_arrays(record: ArrayRecord, forms: Mapping[str, Form]) -> dict[str, NDArray]:
    """A client's arrays, in the order of the model, as views of the bytes that came in."""
    if set(record) != set(forms):
        raise BadReply(Reason.KEYS, f"needs the arrays of the model, {_difference(set(record), set(forms))}")
    return {name: read_array(record[name], form, name) for name, form in forms.items()}


def read_array(array: Array, form: Form, name: str) -> NDArray:
    """One array of exactly this form, with finite numbers."""
    if array.stype != SERIALIZATION:
        raise BadReply(Reason.FORMAT, f"{name} needs serialization {SERIALIZATION}, got {array.stype!r:.40}")
    header = _usual(form) if array.data.startswith(form.usual_header) else _read_header(array.data, name)
    if header.shape != form.shape or tuple(array.shape) != form.shape:
        raise BadReply(Reason.SHAPE, f"{name} needs shape {form.shape}, got {header.shape!r:.80}")
    if header.descr != form.descr or array.dtype != str(form.dtype):
        raise BadReply(Reason.DTYPE, f"{name} needs {form.dtype}, got {header.descr!r:.40}")
    length = len(array.data) - header.end
    if length != form.n_bytes:
        raise BadReply(Reason.LENGTH, f"{name} needs {form.n_bytes} bytes, got {length}")
    values = np.frombuffer(array.data, form.dtype, offset=header.end).reshape(form.shape, order=header.order)
    if np.issubdtype(form.dtype, np.inexact) and not bool(np.isfinite(values).all()):
        raise BadReply(Reason.NOT_FINITE, f"{name} holds NaN or infinity")
    return values


@dataclass(frozen=True)
class _Header:
    """What the bytes say of themselves."""

    descr: object
    shape: object
    order: Literal["C", "F"]
    end: int  # where the numbers begin


def _usual(form: Form) -> _Header:
    """What nearly everybody sends: known by its bytes, so that it need not be parsed."""
    return _Header(form.descr, form.shape, "C", len(form.usual_header))


def _read_header(data: bytes, name: str) -> _Header:
    """Reads text, allocates nothing. Stricter than numpy, which still accepts what Python 2 wrote, with a warning."""
    version = bytes(data[6:8])
    if data[:6] != MAGIC or version not in LENGTH_BYTES:
        raise BadReply(Reason.FORMAT, f"{name} needs the npy format 1.0 or 2.0, got {bytes(data[:8])!r}")
    start = 8 + LENGTH_BYTES[version]
    end = start + int.from_bytes(data[8:start], "little")
    text = bytes(data[start : min(end, MAX_HEADER)])
    if (
        end > min(MAX_HEADER, len(data)) or not text.isascii() or b"\\" in text
    ):  # no escapes: Python warns of wrong ones
        raise BadReply(Reason.FORMAT, f"{name} has no npy header of at most {MAX_HEADER} plain characters")
    try:
        told = ast.literal_eval(text.decode().strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise BadReply(Reason.FORMAT, f"{name} has no readable npy header ({type(error).__name__})") from error
    if not isinstance(told, dict) or set(told) != {"descr", "fortran_order", "shape"}:
        raise BadReply(Reason.FORMAT, f"{name} has an npy header without descr, fortran_order and shape")
    if not isinstance(told["fortran_order"], bool):
        raise BadReply(Reason.FORMAT, f"{name} has an npy header whose fortran_order is neither True nor False")
    return _Header(told["descr"], told["shape"], "F" if told["fortran_order"] else "C", end)


def _difference(got: set[str], wanted: set[str]) -> str:
    return f"{len(wanted - got)} missing, {len(got - wanted)} unknown"
