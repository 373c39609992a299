"""The state of a wrapped strategy: momenta, clipping norms and whatever else its attributes hold."""

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
    """Attributes as JSON values, the tensors that they refer to, and the attributes that cannot be saved."""

    attributes: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    unsaved: list[str] = field(default_factory=list)


def pack_strategy(strategy: Strategy) -> PackedStrategy:
    """All attributes of a strategy and of the strategies that it wraps, except functions."""
    packed = PackedStrategy()
    tensors = packed.tensors

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):  # before PLAIN: numpy's float64 is a float, but widens float32 arrays
            return {"scalar": _store(np.asarray(value), tensors)}
        if value is None or isinstance(value, PLAIN):
            return value
        if isinstance(value, np.ndarray):
            return {"array": _store(value, tensors)}
        if isinstance(value, ArrayRecord):
            return {"arrays": [[name, _store(array.numpy(), tensors)] for name, array in value.items()]}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [encode(item) for item in value]}
        if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
            return {"items": [[key, encode(item)] for key, item in value.items()]}
        if isinstance(value, Strategy):
            return {"strategy": encode_attributes(value)}
        raise TypeError(type(value).__name__)

    def encode_attributes(owner: Strategy) -> dict[str, Any]:
        encoded = {}
        for name, value in vars(owner).items():
            if callable(value) and not isinstance(value, Strategy):
                continue
            try:
                encoded[name] = encode(value)
            except TypeError as error:
                packed.unsaved.append(f"{type(owner).__name__}.{name}, a {error}")
        return encoded

    packed.attributes = encode_attributes(strategy)
    return packed


def restore_strategy(strategy: Strategy, packed: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Set the saved attributes. Others stay as the strategy was constructed."""

    def decode(value: Any, current: Any) -> Any:
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
            return {key: decode(item, None) for key, item in content}
        if kind == "strategy":
            restore_strategy(current, content, tensors)
            return current
        sequence = [decode(item, None) for item in content]
        return tuple(sequence) if kind == "tuple" else sequence

    for name, value in packed.items():
        setattr(strategy, name, decode(value, getattr(strategy, name, None)))


def describe_strategy(strategy: Strategy) -> str:
    """Its class name and those of the strategies that it wraps."""
    inner = [value for value in vars(strategy).values() if isinstance(value, Strategy)]
    return type(strategy).__name__ + "".join(f"({describe_strategy(value)})" for value in inner)


@contextmanager
def restore_on_failure(strategy: Strategy) -> Iterator[None]:
    """Restore the attributes of a strategy if the block raises, or if they would no longer be finite."""
    before = [(owner, dict(vars(owner))) for owner in walk_strategies(strategy)]
    try:
        yield
        for owner in walk_strategies(strategy):
            for name, value in vars(owner).items():
                if not _is_finite(value):
                    raise ValueError(f"{type(owner).__name__}.{name} would not be finite from now on")
    except BaseException:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)
        raise


def walk_strategies(strategy: Strategy) -> Iterator[Strategy]:
    yield strategy
    for value in vars(strategy).values():
        if isinstance(value, Strategy):
            yield from walk_strategies(value)


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


def _store(array: NDArray, tensors: dict[str, Tensor]) -> str:
    name = str(len(tensors))
    tensors[name] = torch.from_numpy(np.array(array))
    return name
