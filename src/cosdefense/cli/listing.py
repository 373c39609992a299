"""What there is: every part by name, with its options and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from ..attacks import Attack
from ..catalog.registry import AGGREGATORS, ATTACKS, FILTERS, HOOKS, PRESETS, describe
from ..catalog.signatures import explanations_of, first_line, needs_of, options_of, required_by
from ..core import Defense, Need
from ..data import DATASETS
from ..data.partition import PARTITIONS
from ..training.models import MODELS
from .list import Kind

LISTED: dict[Kind, Mapping[str, Callable[..., Any]]] = {
    Kind.defenses: PRESETS,
    Kind.filters: FILTERS,
    Kind.aggregators: AGGREGATORS,
    Kind.hooks: HOOKS,
    Kind.attacks: ATTACKS,
    Kind.models: MODELS,
    Kind.partitions: PARTITIONS,
}


NEEDY = (Kind.defenses, Kind.filters, Kind.aggregators, Kind.hooks)  # kinds that may ask something of a deployment


def entries(kind: Kind) -> list[dict[str, Any]]:
    """Name, first line and options of each, and what it needs of a deployment."""
    if kind is Kind.datasets:
        return [
            {"name": name, "what": spec.description, "options": {}, "required": []} for name, spec in DATASETS.items()
        ]
    return [
        {
            "name": name,
            "what": first_line(target),
            "options": {key: _to_plain(value) for key, value in options_of(target).items()},
            "required": required_by(target),
            "explanations": explanations_of(target),
        }
        | ({"needs": sorted(needs_of(target))} if kind in NEEDY else {})
        for name, target in LISTED[kind].items()
    ]


def table(kind: Kind) -> Table:
    """The same for a person; what a deployment must have is one narrow column each, by initial."""
    needs = list(Need) if kind in NEEDY else []
    legend = "needs " + " · ".join(f"{need[0].upper()} {need}" for need in needs) if needs else None
    shown = Table(title=str(kind), title_justify="left", caption=legend, caption_justify="left", show_lines=True)
    shown.add_column("name", no_wrap=True)
    shown.add_column("what it does, options")
    for need in needs:
        shown.add_column(need[0].upper(), justify="center", min_width=1)
    for entry in entries(kind):
        marks = ["✓" if need in entry["needs"] else "" for need in needs]
        shown.add_row(entry["name"], "\n".join([entry["what"], *_option_lines(entry)]), *marks)
    return shown


def _to_plain(value: Any) -> Any:
    """A default that is a defense or an attack, as a table of a configuration file."""
    return describe(value) if isinstance(value, Defense | Attack) else value


def _option_lines(entry: Mapping[str, Any]) -> list[str]:
    options = {f"{key} (required)": key for key in entry["required"]}
    options |= {f"{key} = {_short(value)}": key for key, value in entry["options"].items()}
    explained = entry.get("explanations", {})
    return [f"{option}: {explained[key]}" if key in explained else option for option, key in options.items()]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
