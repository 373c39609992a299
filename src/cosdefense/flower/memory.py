"""What a wrapped strategy remembers between rounds: momenta, clipping norms, whatever its attributes hold."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from .arrays import NDArray

log = logging.getLogger("flwr")

PLAIN = (bool, int, float, str)


def pack_strategy(strategy: Strategy) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Its attributes as JSON values plus the tensors they point to; functions are not state."""
    tensors: dict[str, Tensor] = {}

    def walk(value: Any) -> Any:
        if value is None or isinstance(value, PLAIN):
            return value
        if isinstance(value, np.generic):
            return {"scalar": _kept(np.asarray(value), tensors)}
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
                log.warning("%s.%s holds a %s: it is not in the checkpoint", type(owner).__name__, name, error)
        return known

    return walk_attributes(strategy), tensors


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
