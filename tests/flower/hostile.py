"""Replies of honest and hostile nodes to a message of the steps app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from federations import Arrays, content, to_arrays
from flwr.app import Message, RecordDict
from malformed import with_header
from steps import take_a_step

HEAD = "head.weight"


def answer_honestly(seed: int) -> Callable[[Message], RecordDict]:
    return lambda message: _build(_train(message, seed))


def _train(message: Message, seed: int = 100) -> Arrays:
    return take_a_step(to_arrays(message.content.array_records["arrays"]), seed)


def _build(arrays: Arrays, examples: float = 1) -> RecordDict:
    return content(arrays, {"num-examples": examples})


def _scale(message: Message, factor: float) -> RecordDict:
    """An honest update times a factor."""
    start = to_arrays(message.content.array_records["arrays"])
    scaled = {
        name: (start[name] + np.float64(factor) * (array - start[name])).astype(np.float32)
        for name, array in _train(message).items()
    }
    return _build(scaled)


def _malform_header(message: Message) -> RecordDict:
    """A header that promises 3.0 rows, which numpy refuses."""
    arrays = _train(message)
    body, values = _build(arrays), np.asarray(arrays[HEAD])
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (3.0, {values.shape[1]}), }}"
    body.array_records["arrays"][HEAD] = with_header(header.ljust(117) + "\n", values)
    return body


def _poison_buffers(message: Message) -> RecordDict:
    arrays: dict[str, Any] = dict(_train(message))
    arrays["norm.running_mean"] = arrays["norm.running_mean"] + np.float32(1000.0)
    return _build(arrays)


HOSTILE: dict[str, Callable[[Message], RecordDict | None]] = {
    "malformed header": _malform_header,
    "times 1e30": lambda message: _scale(message, 1e30),
    "sign flip": lambda message: _scale(message, -5.0),
    "poisoned buffers": _poison_buffers,
    "silent": lambda message: None,
    "wrong metrics": lambda message: _build(_train(message), examples=-250),
}
