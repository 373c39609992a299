"""What parts remember between rounds, and how it is written down without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class ClientTable:
    """One row of numbers per client identity. Writing returns a new table."""

    clients: Int[Tensor, " m"]  # sorted
    rows: Float[Tensor, "m k"]
    written: Int[Tensor, " m"]  # when each row was last written, counted in writes

    @classmethod
    def empty(cls) -> ClientTable:
        nothing = torch.empty(0, dtype=torch.int64)
        return cls(nothing, torch.empty(0, 0), nothing)

    def lookup(self, clients: Int[Tensor, " n"], default: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """The clients' rows; row i of `default` for a client never seen."""
        if len(self.clients) == 0:
            return default
        place = torch.searchsorted(self.clients, clients).clamp_max(len(self.clients) - 1)
        known = self.clients[place] == clients
        return torch.where(known[:, None], self.rows[place], default)

    def updated(
        self, clients: Int[Tensor, " n"], rows: Float[Tensor, "n k"], capacity: int | None = None
    ) -> ClientTable:
        """The table with these clients' rows written. Beyond `capacity`, those not written for longest are forgotten.

        Identities cost an attacker nothing where nodes are not authenticated; memory must not grow with them.
        """
        now = torch.full_like(clients, int(self.written.max()) + 1 if len(self.written) else 0)
        if len(self.clients) == 0:
            table = ClientTable(clients, rows, now)
        else:
            others = ~torch.isin(self.clients, clients)
            table = ClientTable(
                torch.cat([self.clients[others], clients]),
                torch.cat([self.rows[others], rows]),
                torch.cat([self.written[others], now]),
            )
        order = table.clients.argsort()
        if capacity is not None and len(order) > capacity:
            latest = table.written[order].argsort(descending=True, stable=True)[:capacity]
            order = order[latest.sort().values]
        return ClientTable(table.clients[order], table.rows[order], table.written[order])


def running(past: float | None, now: float, decay: float) -> float:
    """An exponential average that goes on; it begins with the first number."""
    return now if past is None else decay * past + (1 - decay) * now


def check_decay(part: Any) -> None:
    """For parts with such an average."""
    if not 0 <= part.decay < 1:
        raise ValueError(f"{type(part).__name__}.decay must be in [0, 1), got {part.decay}")


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
            f"a state holds numbers, texts, tensors, tuples, dicts and dataclasses, got {type(value).__name__}"
        )

    return walk(state), tensors


def _plain_key(key: Any) -> str | int:
    if not isinstance(key, str | int):
        raise TypeError(f"a state's dicts are keyed by texts or numbers, got {type(key).__name__}")
    return key


def unpack(packed: Any, tensors: Mapping[str, Tensor], like: Any) -> Any:
    """The state again. `like` (what `init()` returns) supplies the types, so that no file can name a class."""
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
