"""What there is: every part by name, with its options and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from rich.table import Table

from .catalog import AGGREGATORS, ATTACKS, FILTERS, RECIPES
from .data import DATASETS
from .data.partition import PARTITIONS
from .models import MODELS


class Kind(StrEnum):
    defenses = "defenses"
    filters = "filters"
    aggregators = "aggregators"
    attacks = "attacks"
    datasets = "datasets"
    models = "models"
    partitions = "partitions"


LISTED: dict[Kind, Mapping[str, Callable[..., Any]]] = {
    Kind.defenses: RECIPES,
    Kind.filters: FILTERS,
    Kind.aggregators: AGGREGATORS,
    Kind.attacks: ATTACKS,
    Kind.models: MODELS,
    Kind.partitions: PARTITIONS,
}


def entries(kind: Kind) -> list[dict[str, Any]]:
    """Name, first line and options of each."""
    if kind is Kind.datasets:
        return [{"name": name, "what": spec.description, "options": {}, "needs": []} for name, spec in DATASETS.items()]
    return [
        {"name": name, "what": _first_line(target), "options": _options(target), "needs": _needs(target)}
        for name, target in LISTED[kind].items()
    ]


def _first_line(target: Callable[..., Any]) -> str:
    return (inspect.getdoc(target) or "").splitlines()[0]


def _options(target: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(target).parameters
    return {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}


def _needs(target: Callable[..., Any]) -> list[str]:
    """Options without a default. What a model is told about the data is not the user's to say."""
    parameters = inspect.signature(target).parameters
    given = ("shape", "n_classes")
    return [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and name not in given]


def table(kind: Kind) -> Table:
    """The same for a person."""
    shown = Table(title=str(kind), title_justify="left")
    for column in ("name", "what", "options"):
        shown.add_column(column)
    for entry in entries(kind):
        options = (*(f"{k} (needed)" for k in entry["needs"]), *(f"{k} = {v!r}" for k, v in entry["options"].items()))
        shown.add_row(entry["name"], entry["what"], ", ".join(options))
    return shown
