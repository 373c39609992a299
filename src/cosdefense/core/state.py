"""Saves what parts remember between rounds, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def pack(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """A state as plain JSON values plus the tensors they point to."""
    tensors: dict[str, Tensor] = {}

    def walk(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            tensors[str(len(tensors))] = value
            return {"tensor": str(len(tensors) - 1)}
        if isinstance(value, tuple):
            return [walk(item) for item in value]
        if is_dataclass(value):
            return {"fields": {field.name: walk(getattr(value, field.name)) for field in fields(value)}}
        if isinstance(value, Mapping):
            return {"items": [[_plain_key(key), walk(item)] for key, item in value.items()]}
        raise TypeError(
            f"a state holds numbers, strings, tensors, tuples, dicts and dataclasses, got {type(value).__name__}"
        )

    return walk(state), tensors


def _plain_key(key: Any) -> str | int:
    if not isinstance(key, str | int):
        raise TypeError(f"a state's dicts are keyed by strings or whole numbers, got {type(key).__name__}")
    return key


def unpack(packed: Any, tensors: Mapping[str, Tensor], like: Any) -> Any:
    """The state that was packed. `like` (what `init()` returns) supplies the types: no file can name a class."""
    if isinstance(packed, list):
        like = like if isinstance(like, tuple) and len(like) == len(packed) else (None,) * len(packed)
        return tuple(unpack(item, tensors, kind) for item, kind in zip(packed, like, strict=True))
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    if "fields" in packed:
        if not is_dataclass(like) or isinstance(like, type):
            raise TypeError("a saved dataclass needs an `init()` that returns one of its kind")
        return type(like)(
            **{name: unpack(item, tensors, getattr(like, name)) for name, item in packed["fields"].items()}
        )
    kinds = like if isinstance(like, Mapping) else {}
    return {key: unpack(item, tensors, kinds.get(key)) for key, item in packed["items"]}
