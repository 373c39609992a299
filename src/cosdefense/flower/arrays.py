"""Reads arrays that clients sent. The bytes are checked against the expected shape and dtype before any allocation."""

from __future__ import annotations

import ast
import io
import math
import re
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
LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}  # size of the header's length field, by npy version
MAX_HEADER = 4096  # bytes; numpy writes 128
# Python would skip other white space, and warns about unknown escapes.
HEADER_TEXT = re.compile(rb"[ -\[\]-~]*\n?")
SERIALIZATION = "numpy.ndarray"  # the only serialization that Flower itself writes


@dataclass(frozen=True)
class _Header:
    """The fields of an npy header."""

    descr: object
    shape: object
    order: Literal["C", "F"]
    end: int  # offset of the first number


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype that an array must have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @cached_property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def dtype_name(self) -> str:
        return str(self.dtype)

    @cached_property
    def descr(self) -> object:
        return npy.dtype_to_descr(self.dtype)

    @cached_property
    def standard_header(self) -> bytes:
        """The header that numpy itself writes for such an array."""
        fields = {"descr": self.descr, "fortran_order": False, "shape": self.shape}
        file = io.BytesIO()
        npy.write_array_header_1_0(file, fields)
        return file.getvalue()

    @cached_property
    def header(self) -> _Header:
        return _Header(self.descr, self.shape, "C", len(self.standard_header))

    def view(self, array: Array) -> NDArray:
        """The numbers of an array that `read_array` returned, without a copy."""
        return np.frombuffer(array.data, self.dtype, offset=len(self.standard_header)).reshape(self.shape)


class CheckedArray(Array):
    """An array that matches its spec exactly: the standard header, then numbers.

    Strategies read it without parsing the header again, which takes as long as averaging a small array.
    """

    def __init__(self, spec: ArraySpec, data: bytes) -> None:
        # Past Flower's `__setattr__`, which takes several times as long.
        self.__dict__.update(
            dtype=spec.dtype_name, shape=spec.shape, stype=SERIALIZATION, data=data, _spec=spec, _is_shared=False
        )

    def share(self) -> None:
        """From now on `numpy` returns a read-only view: for strategies that do not compute in place."""
        self.__dict__["_is_shared"] = True

    def numpy(self) -> NDArray:
        values: NDArray = self.__dict__["_spec"].view(self)
        return values if self.__dict__["_is_shared"] else values.copy()


def get_specs(arrays: Mapping[str, NDArray]) -> dict[str, ArraySpec]:
    return {name: ArraySpec(array.shape, array.dtype) for name, array in arrays.items()}


def to_numpy(record: ArrayRecord) -> dict[str, NDArray]:
    """The arrays of a trusted record (the server's own model), read without checks."""
    return {name: np.asarray(array.numpy()) for name, array in record.items()}


def count_bytes(record: ArrayRecord) -> int:
    """As they are sent, without names."""
    return sum(len(array.data) for array in record.values())


def read_arrays(record: ArrayRecord, specs: Mapping[str, ArraySpec]) -> dict[str, CheckedArray]:
    """The arrays of a client, in the order of the model, as `read_array` returns them."""
    missing, unknown = set(specs) - set(record), set(record) - set(specs)
    if missing or unknown:
        raise BadReply(
            Reason.KEYS, f"needs the arrays of the model, got {len(missing)} missing, {len(unknown)} unknown"
        )
    return {name: read_array(record[name], spec, name) for name, spec in specs.items()}


def read_array(array: Array, spec: ArraySpec, name: str) -> CheckedArray:
    """The numbers that were received, behind the standard header.

    Where the received bytes begin with the standard header, they are not copied. Otherwise the client wrote the header,
    and nothing of it is passed on. The numbers themselves are not checked here.
    """
    if array.stype != SERIALIZATION:
        raise BadReply(Reason.FORMAT, f"{name} needs serialization {SERIALIZATION}, got {array.stype!r:.40}")
    data = array.data
    if type(data) is not bytes:
        raise BadReply(Reason.FORMAT, f"{name} needs bytes, got {type(data).__name__}")
    is_standard = data.startswith(spec.standard_header)  # nearly every reply: no need to parse
    header = spec.header if is_standard else _parse_header(data, name)
    if header.shape != spec.shape or not _is_shape(array.shape) or array.shape != spec.shape:
        raise BadReply(Reason.SHAPE, f"{name} needs shape {spec.shape}, got {header.shape!r:.80}")
    if header.descr != spec.descr or array.dtype != spec.dtype_name:
        raise BadReply(Reason.DTYPE, f"{name} needs {spec.dtype}, got {header.descr!r:.40}")
    length = len(data) - header.end
    if length != spec.n_bytes:
        raise BadReply(Reason.LENGTH, f"{name} needs {spec.n_bytes} bytes, got {length}")
    if not is_standard:
        values = np.frombuffer(data, spec.dtype, offset=header.end).reshape(spec.shape, order=header.order)
        data = spec.standard_header + values.tobytes()  # in C order
    return CheckedArray(spec, data)


def _parse_header(data: bytes, name: str) -> _Header:
    """Allocates nothing. Stricter than numpy, which accepts headers of Python 2 with a warning."""
    version = data[6:8]
    if data[:6] != MAGIC or version not in LENGTH_BYTES:
        raise BadReply(Reason.FORMAT, f"{name} needs the npy format 1.0 or 2.0, got {data[:8]!r}")
    start = 8 + LENGTH_BYTES[version]
    end = start + int.from_bytes(data[8:start], "little")
    if end > min(MAX_HEADER, len(data)) or not HEADER_TEXT.fullmatch(data, start, end):
        raise BadReply(Reason.FORMAT, f"{name} has no npy header of at most {MAX_HEADER} plain characters")
    try:
        fields = ast.literal_eval(data[start:end].decode("ascii"))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise BadReply(Reason.FORMAT, f"{name} has no readable npy header ({type(error).__name__})") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise BadReply(Reason.FORMAT, f"{name} has an npy header without descr, fortran_order and shape")
    if not isinstance(fields["fortran_order"], bool):
        raise BadReply(Reason.FORMAT, f"{name} has an npy header whose fortran_order is neither True nor False")
    shape = fields["shape"]
    if not _is_shape(shape):
        raise BadReply(Reason.SHAPE, f"{name} needs a shape of whole numbers, got {shape!r:.80}")
    return _Header(fields["descr"], shape, "F" if fields["fortran_order"] else "C", end)


def _is_shape(shape: object) -> bool:
    """Whole numbers of type int only, because True == 1 == 1.0 == 1+0j."""
    return isinstance(shape, tuple) and all(type(length) is int for length in shape)
