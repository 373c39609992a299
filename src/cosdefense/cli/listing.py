"""What there is: every part by name, with its options and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ..attacks import Attack
from ..catalog.facts import FACTS, SYMBOLS
from ..catalog.registry import AGGREGATORS, ATTACKS, FILTERS, HOOKS, PRESETS, PRESETS_BY_KIND, describe
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


KIND_OF = {name: group for group, names in PRESETS_BY_KIND.items() for name in names}
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
        | ({"kind": KIND_OF[name], **asdict(FACTS[name])} if kind is Kind.defenses else {})
        for name, target in LISTED[kind].items()
    ]


def tables(kind: Kind) -> Iterator[Table]:
    """The same for a person: one table, or one per kind of defense. A need is shown by its initial."""
    listed = {entry["name"]: entry for entry in entries(kind)}
    groups = (
        {group: list(names) for group, names in PRESETS_BY_KIND.items()}
        if kind is Kind.defenses
        else {"": list(listed)}
    )
    for i, (group, names) in enumerate(groups.items()):
        title = f"{kind}: {group}" if group else str(kind)
        legend = _legend(kind) if i == len(groups) - 1 else None
        shown = Table(title=title, title_justify="left", caption=legend, caption_justify="left", show_lines=True)
        shown.add_column("name", no_wrap=True)
        shown.add_column("what it does, options", ratio=1)
        if kind in NEEDY:
            shown.add_column("needs", min_width=5)
        if kind is Kind.defenses:
            shown.add_column("year", no_wrap=True)
            shown.add_column("cost", max_width=12)
        for name in names:
            shown.add_row(*_cells(kind, listed[name]))
        yield shown


def _legend(kind: Kind) -> str | None:
    """What the letters and symbols mean."""
    lines = []
    if kind in NEEDY:
        lines.append("needs: " + " · ".join(f"{need[0].upper()} {need}" for need in Need))
    if kind is Kind.defenses:
        lines.append(f"cost at the server: {SYMBOLS}")
    return "\n".join(lines) or None


def _cells(kind: Kind, entry: Mapping[str, Any]) -> list[str]:
    cells = [entry["name"], "\n".join([entry["what"], *_option_lines(entry)])]
    if kind in NEEDY:
        cells.append(" ".join(need[0].upper() for need in Need if need in entry["needs"]))
    if kind is Kind.defenses:
        cells += [str(entry["year"]), entry["cost"]]
    return cells


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
