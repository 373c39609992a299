"""The state of a wrapped strategy: momenta, clipping norms and whatever else its attributes hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.common import Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from .arrays import NDArray

PLAIN = (bool, int, float, str)
AnyStrategy = Strategy | OlderStrategy  # what a strategy may wrap
Attributes = Mapping[str, Any]  # JSON values by path: "m_t", or "strategy.m_t" for that of a wrapped strategy


@dataclass
class PackedStrategy:
    """Attributes as JSON values, the tensors that they refer to, and the attributes that cannot be saved."""

    attributes: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    unsaved: list[str] = field(default_factory=list)


def pack_strategy(strategy: AnyStrategy, constructed: Attributes | None = None) -> PackedStrategy:
    """The attributes of a strategy and of those that it wraps, except functions and those that are as `constructed`."""
    packed = PackedStrategy()

    def store(array: NDArray) -> str:
        name = str(len(packed.tensors))
        packed.tensors[name] = torch.from_numpy(np.array(array))
        return name

    for path, owner, value in _walk_attributes(strategy):
        try:
            if constructed is None or _has_changed(value, path, constructed):
                packed.attributes[path] = _encode(value, store)
        except TypeError as error:
            packed.unsaved.append(f"{type(owner).__name__}.{path.rpartition('.')[2]}, a {error}")
    return packed


def fingerprint_strategy(strategy: AnyStrategy) -> dict[str, Any]:
    """All attributes as JSON values, with digests in place of arrays: to find out later which have changed."""
    attributes = {}
    for path, _, value in _walk_attributes(strategy):
        with suppress(TypeError):
            attributes[path] = _encode(value, _digest)
    return attributes


def restore_strategy(
    strategy: AnyStrategy,
    packed: Attributes,
    tensors: Mapping[str, Tensor],
    constructed: Attributes,
    constructed_before: Attributes,
) -> list[str]:
    """Set the attributes that the strategy itself had changed. What its constructor was given now stays.

    Both `constructed` are the attributes after the constructor: of this strategy, and of that which was saved. Returns
    where they differ, in words.
    """
    given = {
        path: value
        for path, value in constructed.items()
        if path in constructed_before and _to_text(value) != _to_text(constructed_before[path])
    }
    state = [
        (*_find_owner(strategy, path), _decode(value, tensors)) for path, value in packed.items() if path not in given
    ]
    for owner, name, value in state:  # only after all of them could be read
        setattr(owner, name, value)
    return [
        f"{path} is now {_show(value)}, it was {_show(constructed_before[path])} before"
        + (", and the state that grew from it starts again" if path in packed else "")
        for path, value in given.items()
    ]


def _walk_attributes(strategy: AnyStrategy, prefix: str = "") -> Iterator[tuple[str, AnyStrategy, Any]]:
    """Path, owner and value, except functions."""
    for name, value in vars(strategy).items():
        if isinstance(value, AnyStrategy):
            yield from _walk_attributes(value, f"{prefix}{name}.")
        elif not callable(value):
            yield f"{prefix}{name}", strategy, value


def _find_owner(strategy: AnyStrategy, path: str) -> tuple[AnyStrategy, str]:
    *owners, name = path.split(".")
    for owner in owners:
        strategy = vars(strategy).get(owner)  # type: ignore[assignment]
    if not isinstance(strategy, AnyStrategy) or not name.isidentifier() or name.startswith("__"):
        raise ValueError(f"the checkpoint holds {path!r}, which no strategy has")
    return strategy, name


def _has_changed(value: Any, path: str, constructed: Attributes) -> bool:
    before = constructed.get(path)
    if path not in constructed or (value is None) != (before is None):
        return True  # most states start as None: no need to digest them
    return _to_text(_encode(value, _digest)) != _to_text(before)


def _encode(value: Any, store: Callable[[NDArray], str]) -> Any:
    if isinstance(value, np.generic):  # before PLAIN: numpy's float64 is a float, but widens float32 arrays
        return {"scalar": store(np.asarray(value))}
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return {"array": store(value)}
    if isinstance(value, ArrayRecord):
        return {"arrays": [[name, store(array.numpy())] for name, array in value.items()]}
    if isinstance(value, Parameters):
        return {"parameters": [store(array) for array in parameters_to_ndarrays(value)]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_encode(item, store) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        return {"items": [[key, _encode(item, store)] for key, item in value.items()]}
    raise TypeError(type(value).__name__)


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "scalar":
        return tensors[content].numpy()[()]
    if kind == "array":
        return tensors[content].numpy().copy()
    if kind == "arrays":
        return ArrayRecord({name: Array(tensors[key].numpy().copy()) for name, key in content})
    if kind == "parameters":
        return ndarrays_to_parameters([tensors[key].numpy() for key in content])
    if kind == "items":
        return {key: _decode(item, tensors) for key, item in content}
    sequence = [_decode(item, tensors) for item in content]
    return tuple(sequence) if kind == "tuple" else sequence


def _digest(array: NDArray) -> str:
    content = f"{array.dtype.str} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _to_text(encoded: Any) -> str:
    return json.dumps(encoded)  # NaN equals NaN, and 1 is not True


def _show(encoded: Any) -> str:
    return repr(encoded) if encoded is None or isinstance(encoded, PLAIN) else "another value"


def describe_strategy(strategy: AnyStrategy) -> str:
    """Its class name and those of the strategies that it wraps."""
    inner = [value for value in vars(strategy).values() if isinstance(value, AnyStrategy)]
    return type(strategy).__name__ + "".join(f"({describe_strategy(value)})" for value in inner)


class UnusableResultError(ValueError):
    """What a strategy returned or keeps is not finite, or far from all accepted updates."""


@contextmanager
def restore_on_failure(strategy: AnyStrategy) -> Iterator[None]:
    """Restore the attributes of a strategy if the block raises, or if they would no longer be finite."""
    before = [
        (owner, {name: _copy(value) for name, value in vars(owner).items()}) for owner in walk_strategies(strategy)
    ]
    try:
        yield
        for owner in walk_strategies(strategy):
            for name, value in vars(owner).items():
                if not _is_finite(value):
                    raise UnusableResultError(f"{type(owner).__name__}.{name} would not be finite from now on")
    except BaseException:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)
        raise


def _copy(value: Any) -> Any:
    """A shallow copy of what a strategy may change in place: QFedAvg empties its record of arrays."""
    return value.copy() if isinstance(value, ArrayRecord | list | dict) else value


def walk_strategies(strategy: AnyStrategy) -> Iterator[AnyStrategy]:
    yield strategy
    for value in vars(strategy).values():
        if isinstance(value, AnyStrategy):
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
