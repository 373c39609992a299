"""The options of a recorded defense that differ from the defaults of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from ...catalog.registry import AGGREGATORS, FILTERS, HOOKS

SHARE_OPTION = "contamination"  # the arena tells every rule that takes it the true share of attackers


def show_unusual_options(defense: Mapping[str, Any]) -> str:
    """`radius = 0.02`; empty: all are the defaults."""
    parts: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [(FILTERS, part) for part in defense.get("filters", ())]
    parts.append((AGGREGATORS, defense.get("aggregator", {})))
    parts += [(HOOKS, part) for part in defense.get("hooks", ())]
    return ", ".join(
        f"{key} = {_show(value)}" for catalog, part in parts for key, value in _list_unusual(catalog, part)
    )


def _list_unusual(catalog: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A part of somebody else's has no defaults that are known here: nothing is shown of it."""
    make = catalog.get(part.get("name", ""))
    for own in fields(make) if make is not None else ():
        default = "none" if own.default is None else own.default
        value = part.get(own.name, default)
        is_part = isinstance(value, Mapping) or own.default is MISSING
        if own.name != SHARE_OPTION and not is_part and value != default:
            yield own.name, value


def _show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
