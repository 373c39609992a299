"""What there is: every part by name, with its options and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from .catalog import AGGREGATORS, ATTACKS, FILTERS, HOOKS, RECIPES
from .data import DATASETS
from .data.partition import PARTITIONS
from .defense import Need
from .kinds import Kind
from .models import MODELS

LISTED: dict[Kind, Mapping[str, Callable[..., Any]]] = {
    Kind.defenses: RECIPES,
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
        {"name": name, "what": first_line(target), "options": options_of(target), "required": required_by(target)}
        | ({"needs": sorted(needs_of(target))} if kind in NEEDY else {})
        for name, target in LISTED[kind].items()
    ]


def first_line(target: Any) -> str:
    return (inspect.getdoc(target) or "").splitlines()[0]


def options_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Options and their defaults."""
    parameters = inspect.signature(target).parameters
    return {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}


def required_by(target: Callable[..., Any]) -> list[str]:
    """Options without a default. What a model is told about the data is not the user's to say."""
    parameters = inspect.signature(target).parameters
    given = ("shape", "n_classes")
    return [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and name not in given]


def needs_of(target: Any) -> frozenset[Need]:
    """A part declares what it needs; a recipe needs what its parts do."""
    has_needs: Any = target if inspect.isclass(target) else target()
    needs: frozenset[Need] = has_needs.needs
    return needs


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
        required = [f"{key} (required)" for key in entry["required"]]
        options = ", ".join([*required, *(f"{key} = {_short(value)}" for key, value in entry["options"].items())])
        marks = ["✓" if need in entry["needs"] else "" for need in needs]
        shown.add_row(entry["name"], "\n".join(filter(None, (entry["what"], options))), *marks)
    return shown


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
