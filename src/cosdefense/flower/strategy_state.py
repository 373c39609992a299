"""What a wrapped strategy remembers between rounds: momenta, clipping norms, whatever its attributes hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from .arrays import NDArray

PLAIN = (bool, int, float, str)


@dataclass
class PackedStrategy:
    """Attributes as JSON values, the tensors they point to, and the names of those that cannot be written down."""

    attributes: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def pack_strategy(strategy: Strategy) -> PackedStrategy:
    """All that a strategy holds, down through the strategies it wraps; functions are not state."""
    packed = PackedStrategy()
    tensors = packed.tensors

    def walk(value: Any) -> Any:
        if isinstance(value, np.generic):  # before PLAIN: numpy's float64 is a float, but makes float32 arrays wide
            return {"scalar": _kept(np.asarray(value), tensors)}
        if value is None or isinstance(value, PLAIN):
            return value
        if isinstance(value, np.ndarray):
            return {"array": _kept(value, tensors)}
        if isinstance(value, ArrayRecord):
            return {"arrays": [[name, _kept(array.numpy(), tensors)] for name, array in value.items()]}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [walk(item) for item in value]}
        if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
            return {"items": [[key, walk(item)] for key, item in value.items()]}
        if isinstance(value, Strategy):
            return {"strategy": walk_attributes(value)}
        raise TypeError(type(value).__name__)

    def walk_attributes(owner: Strategy) -> dict[str, Any]:
        known = {}
        for name, value in vars(owner).items():
            if callable(value) and not isinstance(value, Strategy):
                continue
            try:
                known[name] = walk(value)
            except TypeError as error:
                packed.left_out.append(f"{type(owner).__name__}.{name}, a {error}")
        return known

    packed.attributes = walk_attributes(strategy)
    return packed


def kinds_of(strategy: Strategy) -> str:
    """The strategy's name and those of what it wraps, for people."""
    inner = [value for value in vars(strategy).values() if isinstance(value, Strategy)]
    return type(strategy).__name__ + "".join(f"({kinds_of(value)})" for value in inner)


@contextmanager
def undone_on_failure(strategy: Strategy) -> Iterator[None]:
    """What a strategy remembers is as before if it fails, or if what it would remember is not finite."""
    before = [(owner, dict(vars(owner))) for owner in _nested(strategy)]
    try:
        yield
        for owner in _nested(strategy):
            for name, value in vars(owner).items():
                if not _is_finite(value):
                    raise ValueError(f"{type(owner).__name__}.{name} would not be finite from now on")
    except BaseException:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)
        raise


def _nested(strategy: Strategy) -> Iterator[Strategy]:
    yield strategy
    for value in vars(strategy).values():
        if isinstance(value, Strategy):
            yield from _nested(value)


def _is_finite(value: Any) -> bool:
    if isinstance(value, ArrayRecord):
        return all(_is_finite(array.numpy()) for array in value.values())
    if isinstance(value, Mapping):
        return all(_is_finite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_finite(item) for item in value)
    if isinstance(value, np.ndarray | np.generic) and np.issubdtype(value.dtype, np.inexact):
        return bool(np.isfinite(value).all())
    return True


def restore_strategy(strategy: Strategy, packed: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Give the attributes back. What is not in the checkpoint stays as the strategy was made."""

    def build(value: Any, now: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "scalar":
            return tensors[content].numpy()[()]
        if kind == "array":
            return tensors[content].numpy().copy()
        if kind == "arrays":
            return ArrayRecord({name: Array(tensors[key].numpy().copy()) for name, key in content})
        if kind == "items":
            return {key: build(item, None) for key, item in content}
        if kind == "strategy":
            restore_strategy(now, content, tensors)
            return now
        sequence = [build(item, None) for item in content]
        return tuple(sequence) if kind == "tuple" else sequence

    for name, value in packed.items():
        setattr(strategy, name, build(value, getattr(strategy, name, None)))


def _kept(array: NDArray, tensors: dict[str, Tensor]) -> str:
    name = str(len(tensors))
    tensors[name] = torch.from_numpy(np.array(array))
    return name
