"""One HTML page with everything in it: no network, and no script but its own.

Labels come from records that somebody else may have written. The templates escape every text, and the page's content
security policy names its scripts by their hashes: nothing else can run or be loaded.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..runs.records import RunRecord
from .client_table import make_client_table
from .experiment_settings import experiments, flat
from .figure import Figure
from .groups import Group, group_runs
from .node_table import make_node_table
from .results import describe_results, explain_columns, make_table, to_csv, to_json
from .table import Table
from .theme import PAGE, config

MAX_ROWS = 24  # of an open table: beyond that the heat maps are easier to read


@dataclass(frozen=True)
class Download:
    """A file inside the page."""

    label: str
    name: str
    link: str


@dataclass(frozen=True)
class Section:
    """A part of the page: a figure with its numbers folded below it, or a table; then what can be downloaded."""

    name: str  # its anchor
    title: str
    figure: Figure | None = None
    table: Table | None = None
    downloads: tuple[Download, ...] = ()

    @classmethod
    def of_table(cls, table: Table, downloads: tuple[Download, ...] = ()) -> Section:
        return cls(table.name, table.title, None, table, downloads)

    @classmethod
    def of_figure(cls, figure: Figure, numbers: Table | None = None) -> Section:
        return cls(figure.name, figure.title, figure, numbers)

    @classmethod
    def of_downloads(cls, groups: Sequence[Group]) -> Section:
        return cls("data", "Downloads", downloads=make_downloads(groups))


def render_report(runs: Sequence[RunRecord], figures: Sequence[Figure], title: str) -> str:
    """The page of a report on any runs."""
    groups = group_runs(runs)
    headings, rows = make_table(groups)
    n_words = sum(heading in ("Defense", "Setting", "Attack") for heading in headings)
    results = Table(
        "results", "Results", explain_columns(groups), tuple(headings), tuple(map(tuple, rows)), n_words,
        folded=len(rows) > MAX_ROWS,
    )  # fmt: skip
    nodes, clients = make_node_table(runs), make_client_table(runs)
    sections = [Section.of_table(results, make_downloads(groups)), *map(Section.of_figure, figures)]
    sections += [Section.of_table(table) for table in (clients, nodes) if table]
    return render_page(runs, title, describe_results(groups), sections)


def render_page(runs: Sequence[RunRecord], title: str, summary: str, sections: Sequence[Section]) -> str:
    """A page of the given sections, with settings and versions at its end, and with all that its charts need."""
    figures = [section.figure for section in sections if section.figure]
    page = _environment().get_template("page.html")
    return page.render(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hash(_script())}",
        title=title,
        style=Markup(_read("page.css")),
        summary=summary,
        sections=sections,
        settings=[(str(table.get("name", "unnamed")), _to_pairs(table)) for table in experiments(runs)],
        environment=_list_environment(runs),
        charts=_to_script_json({"config": config(PAGE), "specs": _collect_specs(figures)}),
        script=Markup(_script()),
    )


def make_downloads(groups: Sequence[Group]) -> tuple[Download, ...]:
    """The data of every run, as files inside the page."""
    formats = (("CSV", "text/csv", to_csv(groups)), ("JSON", "application/json", to_json(groups)))
    return tuple(
        Download(label, f"results.{label.lower()}", f"data:{media_type};charset=utf-8;base64,{_encode(text.encode())}")
        for label, media_type, text in formats
    )


def _collect_specs(figures: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    return {figure.chart_id(index): panel.spec() for figure in figures for index, panel in enumerate(figure.panels)}


def _list_environment(runs: Sequence[RunRecord]) -> list[tuple[str, str | None]]:
    """Data, device, command and versions; where runs differ, all their values."""
    values: dict[str, dict[str, None]] = {}
    for run in runs:
        wanted = {key: run.header.get(key) for key in ("dataset", "device", "commit", "command", "versions")}
        for key, value in flat(wanted):
            if value is not None:
                values.setdefault(key.removeprefix("versions."), {})[str(value)] = None
    return [(key, ", ".join(texts)) for key, texts in values.items()]


def _to_pairs(values: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Names and texts; a nested table comes last, below its name with None for a text."""
    pairs: list[tuple[str, str | None]] = []
    nested = {key: value for key, value in values.items() if _is_nested(value)}
    pairs += _to_texts({key: value for key, value in values.items() if key not in nested})
    for key, value in nested.items():
        pairs += [(str(key), None), *_to_texts(value)]
    return pairs


def _to_texts(values: Any) -> list[tuple[str, str]]:
    def to_text(value: Any) -> str:
        return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    return [(name, to_text(value)) for name, value in flat(values)]


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list | tuple) and any(map(_is_nested, value)))


def _to_script_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: no tag can begin in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _hash(script: str) -> str:
    return f"'sha256-{_encode(sha256(script.encode()).digest())}'"


def _encode(content: bytes) -> str:
    return b64encode(content).decode()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache  # takes a second
def _script() -> str:
    """The page's own script with Vega, Vega-Lite and Vega-Embed in it; nothing in them may end the script element."""
    return str(vl_convert.javascript_bundle(_read("page.js"))).replace("</script", "<\\/script")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
