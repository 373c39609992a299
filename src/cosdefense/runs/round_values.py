"""A round in single named values, as tables and experiment trackers hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .records import RoundRecord

# Of a record, what has one value per client of the round; the rest describes the round.
OF_CLIENTS = ("clients", "weights", "malicious", "reasons", "notes", "names", "scores", "points", "client_metrics")


def describe_round(record: RoundRecord) -> dict[str, Any]:
    """What was measured in a round, and how many clients took part, counted and were rejected."""
    names = [field.name for field in fields(record) if field.name not in OF_CLIENTS]
    return flatten({name: getattr(record, name) for name in names}) | _count_clients(record)


def flatten(values: Mapping[str, Any], separator: str = "_") -> dict[str, Any]:
    """Values inside mappings and lists under names of their own: `seconds_train`, `class_recalls_0`."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            row |= flatten({f"{name}{separator}{key}": item for key, item in value.items()}, separator)
        elif isinstance(value, list | tuple):
            row |= flatten({f"{name}{separator}{index}": item for index, item in enumerate(value)}, separator)
        else:
            row[name] = value
    return row


def _count_clients(record: RoundRecord) -> dict[str, int]:
    """Nothing where the clients were not kept."""
    if not record.clients:
        return {}
    rejected = [weight == 0 for weight in record.weights]
    counts = {"n_clients": len(rejected), "n_rejected": sum(rejected)}
    if record.malicious is not None:
        pairs = list(zip(record.malicious, rejected, strict=True))
        counts |= {"n_malicious": sum(record.malicious), "n_malicious_rejected": sum(m and r for m, r in pairs)}
    return counts
