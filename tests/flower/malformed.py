"""A catalog of malformed replies: an honest reply with one fault each, and the reason code of its rejection."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from federations import Arrays, content, reply
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from cosdefense.flower import Reason
from cosdefense.flower.arrays import NDArray

TARGET = "head.weight"  # the array with the fault; float32, two dimensions
Corrupt = Callable[[RecordDict], None]
CANARY: list[Path] = []  # the file that unpickling would create; set by the test that checks it


def plain_metrics() -> dict[str, Any]:
    return {"loss": 1.25, "accuracies": [0.5, 0.75], "num-examples": 10}


def honest_body(arrays: Arrays) -> RecordDict:
    return content(arrays, plain_metrics())


def npy(values: NDArray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def raw(data: bytes, like: NDArray, **fields: Any) -> Array:
    """Raw bytes with the metadata of a valid array."""
    metadata = {"dtype": str(like.dtype), "shape": like.shape, "stype": "numpy.ndarray", **fields}
    return Array(metadata["dtype"], metadata["shape"], metadata["stype"], data)


def with_header(text: str, like: NDArray, version: bytes = b"\x01\x00") -> Array:
    """Valid numbers behind another header."""
    header = text.encode("latin1")
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return raw(b"\x93NUMPY" + version + length + header + like.tobytes(), like)


class Canary:
    """Unpickling this creates a file."""

    def __reduce__(self) -> Any:
        return open, (str(CANARY[0] if CANARY else "canary"), "w")


def _array(build: Callable[[NDArray], Array]) -> Corrupt:
    def corrupt(body: RecordDict) -> None:
        arrays = body.array_records["arrays"]
        arrays[TARGET] = build(arrays[TARGET].numpy())

    return corrupt


def _values(change: Callable[[NDArray], NDArray]) -> Corrupt:
    return _array(lambda values: Array(np.asarray(change(values.copy()))))


def _header(text: str, version: bytes = b"\x01\x00") -> Corrupt:
    return _array(lambda values: with_header(text, values, version))


def _metric(key: str, value: Any) -> Corrupt:
    def corrupt(body: RecordDict) -> None:
        body.metric_records["metrics"].__dict__["_data"][key] = (
            value  # bypasses Flower's own check, as a forged message does
        )

    return corrupt


def _remove(record: str, key: str) -> Corrupt:
    def corrupt(body: RecordDict) -> None:
        del body[record][key]

    return corrupt


def _add(record: str, key: str, value: Any) -> Corrupt:
    def corrupt(body: RecordDict) -> None:
        body[record][key] = value

    return corrupt


def _record(name: str, value: Any) -> Corrupt:
    def corrupt(body: RecordDict) -> None:
        if value is None:
            del body[name]
        else:
            body[name] = value

    return corrupt


def _set(values: NDArray, value: float) -> NDArray:
    values.flat[-1] = value
    return values


def _npz(values: NDArray) -> Array:
    file = io.BytesIO()
    np.savez(file, values)
    return raw(file.getvalue(), values)


def _objects(values: NDArray) -> Array:
    file = io.BytesIO()
    np.save(file, np.array([[Canary()] * 6] * 3, dtype=object), allow_pickle=True)
    return raw(file.getvalue(), values)


def _many_metrics(body: RecordDict) -> None:
    body.metric_records["metrics"].__dict__["_data"].update(MANY)


MANY = dict.fromkeys(map(str, range(10**5)), 1.0)
GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 6), }"
HUGE = 2**40

CONTENTS: dict[str, tuple[Reason, Corrupt]] = {
    # shapes
    "one number": (Reason.SHAPE, _values(lambda v: v.ravel()[:1])),
    "no dimensions": (Reason.SHAPE, _values(lambda v: np.float32(1.0))),  # type: ignore[arg-type,return-value]
    "flat": (Reason.SHAPE, _values(np.ravel)),
    "transposed": (Reason.SHAPE, _values(np.transpose)),
    "one more dimension": (Reason.SHAPE, _values(lambda v: v[None])),
    "a row less": (Reason.SHAPE, _values(lambda v: v[1:])),
    "empty": (Reason.SHAPE, _values(lambda v: v[:0])),
    "shape that differs from the bytes": (Reason.SHAPE, _array(lambda v: raw(npy(v), v, shape=(6, 3)))),
    # kinds of numbers
    "float64": (Reason.DTYPE, _values(lambda v: v.astype(np.float64))),
    "float16": (Reason.DTYPE, _values(lambda v: v.astype(np.float16))),
    "integers": (Reason.DTYPE, _values(lambda v: v.astype(np.int32))),
    "booleans": (Reason.DTYPE, _values(lambda v: v > 0)),
    "complex": (Reason.DTYPE, _values(lambda v: v.astype(np.complex64))),
    "strings": (Reason.DTYPE, _values(lambda v: v.astype("U4"))),
    "big-endian": (Reason.DTYPE, _values(lambda v: v.astype(">f4"))),
    "structured": (Reason.DTYPE, _values(lambda v: v.view([("a", "<f4")]))),
    "dtype that differs from the bytes": (Reason.DTYPE, _array(lambda v: raw(npy(v), v, dtype="float64"))),
    "pickled objects": (Reason.DTYPE, _array(_objects)),
    # headers
    "pickle": (Reason.FORMAT, _array(lambda v: raw(pickle.dumps(Canary()), v))),
    "npz": (Reason.FORMAT, _array(_npz)),
    "npy version 3": (Reason.FORMAT, _header(GOOD, b"\x03\x00")),
    "npy version 0": (Reason.FORMAT, _header(GOOD, b"\x00\x00")),
    "no bytes": (Reason.FORMAT, _array(lambda v: raw(b"", v))),
    "the header cut": (Reason.FORMAT, _array(lambda v: raw(npy(v)[:60], v))),
    "random bytes": (Reason.FORMAT, _array(lambda v: raw(np.random.default_rng(3).bytes(200), v))),
    "a header of 64 KiB": (Reason.FORMAT, _header(GOOD + " " * 60_000)),
    "a header with a call": (Reason.FORMAT, _header(GOOD.replace("(3, 6)", "exit(3)"))),
    "a header nested deeply": (Reason.FORMAT, _header("(" * 4000)),
    "a header of minus signs": (Reason.FORMAT, _header("-" * 4000 + "1")),
    "a header of Python 2": (Reason.FORMAT, _header(GOOD.replace("(3, 6)", "(3L, 6L)"))),
    "a header that is not ASCII": (Reason.FORMAT, _header(GOOD.replace("<f4", "é"))),
    "a header with escapes": (Reason.FORMAT, _header(GOOD.replace("<f4", "\\x3cf4"))),
    "a header without shape": (Reason.FORMAT, _header("{'descr': '<f4', 'fortran_order': False, }")),
    "a header with more": (Reason.FORMAT, _header(GOOD.replace("}", "'more': 1}"))),
    "a header that is a list": (Reason.FORMAT, _header("[1, 2, 3]")),
    "a header after a vertical tab": (Reason.FORMAT, _header("\x0b" + GOOD)),
    "a header after a form feed": (Reason.FORMAT, _header("\x0c" + GOOD)),
    "a header before a unit separator": (Reason.FORMAT, _header(GOOD + "\x1f")),
    "a header on two lines": (Reason.FORMAT, _header(GOOD.replace(" ", "\n", 1))),
    "an order that is a number": (Reason.FORMAT, _header(GOOD.replace("False", "7"))),
    "terabytes declared": (Reason.SHAPE, _header(GOOD.replace("(3, 6)", f"({HUGE}, 6)"))),
    "negative lengths": (Reason.SHAPE, _header(GOOD.replace("(3, 6)", "(-3, -6)"))),
    "a shape of text": (Reason.SHAPE, _header(GOOD.replace("(3, 6)", "'3, 6'"))),
    "a shape of floats": (Reason.SHAPE, _header(GOOD.replace("(3, 6)", "(3.0, 6)"))),
    "a shape of complex numbers": (Reason.SHAPE, _header(GOOD.replace("(3, 6)", "(3+0j, 6)"))),
    "a shape that is a list": (Reason.SHAPE, _header(GOOD.replace("(3, 6)", "[3, 6]"))),
    "another serialization": (Reason.FORMAT, _array(lambda v: raw(npy(v), v, stype="pickle"))),
    # lengths
    "a byte less": (Reason.LENGTH, _array(lambda v: raw(npy(v)[:-1], v))),
    "a byte more": (Reason.LENGTH, _array(lambda v: raw(npy(v) + b"\0", v))),
    "only the header": (Reason.LENGTH, _array(lambda v: raw(npy(v)[:128], v))),
    # values
    "NaN": (Reason.NOT_FINITE, _values(lambda v: _set(v, np.nan))),
    "infinity": (Reason.NOT_FINITE, _values(lambda v: _set(v, np.inf))),
    "minus infinity": (Reason.NOT_FINITE, _values(lambda v: _set(v, -np.inf))),
    # keys and records
    "an array missing": (Reason.KEYS, _remove("arrays", TARGET)),
    "an array more": (Reason.KEYS, _add("arrays", "more", Array(np.zeros(3)))),
    "no arrays": (Reason.RECORDS, _record("arrays", None)),
    "an empty record of arrays": (Reason.KEYS, _record("arrays", ArrayRecord())),
    "two records of arrays": (Reason.RECORDS, _record("more", ArrayRecord({"a": Array(np.zeros(3))}))),
    "no metrics": (Reason.RECORDS, _record("metrics", None)),
    "two records of metrics": (Reason.RECORDS, _record("more", MetricRecord({"a": 1.0}))),
    # metrics
    "a metric missing": (Reason.METRICS, _remove("metrics", "loss")),
    "a metric more": (Reason.METRICS, _add("metrics", "more", 1.0)),
    "a metric that is NaN": (Reason.METRICS, _metric("loss", float("nan"))),
    "a metric that is infinite": (Reason.METRICS, _metric("loss", float("inf"))),
    "a metric too large for a float": (Reason.METRICS, _metric("loss", 10**400)),
    "a metric that is text": (Reason.METRICS, _metric("loss", "low")),
    "a list instead of a number": (Reason.METRICS, _metric("loss", [1.0, 2.0])),
    "a number instead of a list": (Reason.METRICS, _metric("accuracies", 0.5)),
    "a longer list": (Reason.METRICS, _metric("accuracies", [0.5, 0.5, 0.5])),
    "a list with NaN": (Reason.METRICS, _metric("accuracies", [0.5, float("nan")])),
    "a hundred thousand metrics": (Reason.METRICS, _many_metrics),
    "a list of a million numbers": (Reason.METRICS, _metric("accuracies", [0.5] * 10**6)),
    "a metric with a long name": (Reason.METRICS, _add("metrics", "loss" * 100, 1.0)),
    "a metric with a line feed in its name": (Reason.METRICS, _add("metrics", "a\nb", 1.0)),
    "a metric with an escape in its name": (Reason.METRICS, _add("metrics", "\x1b[2J", 1.0)),
    # examples
    "no number of examples": (Reason.EXAMPLES, _remove("metrics", "num-examples")),
    "0 examples": (Reason.EXAMPLES, _metric("num-examples", 0)),
    "-250 examples": (Reason.EXAMPLES, _metric("num-examples", -250)),
    "NaN examples": (Reason.EXAMPLES, _metric("num-examples", float("nan"))),
    "infinitely many examples": (Reason.EXAMPLES, _metric("num-examples", float("inf"))),
    "True examples": (Reason.EXAMPLES, _metric("num-examples", True)),
    "a list of examples": (Reason.EXAMPLES, _metric("num-examples", [10, 10])),
    "examples too many for a float": (Reason.EXAMPLES, _metric("num-examples", 10**400)),
}


ENVELOPES: dict[str, tuple[Reason, Callable[[Message, RecordDict], Message]]] = {
    "an error": (Reason.ERROR, lambda m, _: reply(m, error=Error(code=0, reason="out of\nmemory"))),
    "from another node": (
        Reason.UNSOLICITED,
        lambda m, body: reply(m, body, src_node_id=m.metadata.dst_node_id + 1),
    ),
    "to an older message": (Reason.UNSOLICITED, lambda m, body: reply(m, body, reply_to_message_id="message-of-old")),
    "to no message": (Reason.UNSOLICITED, lambda m, body: reply(m, body, reply_to_message_id="")),
    "neither content nor error": (Reason.UNREADABLE, lambda m, body: _without_content(reply(m, body))),
}
KINDS = (*CONTENTS, *ENVELOPES)


def make_malformed(kind: str, message: Message, arrays: Arrays) -> Message:
    """A reply to this message with these arrays and the fault of this kind."""
    body = honest_body(arrays)
    if kind in ENVELOPES:
        return ENVELOPES[kind][1](message, body)
    CONTENTS[kind][1](body)
    return reply(message, body)


def get_reason(kind: str) -> Reason:
    return (ENVELOPES[kind] if kind in ENVELOPES else CONTENTS[kind])[0]


def _without_content(message: Message) -> Message:
    message.__dict__["_content"] = None
    return message
