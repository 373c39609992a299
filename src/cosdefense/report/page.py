"""One HTML page with everything in it: no network, and no script but its own.

Labels come from records that somebody else may have written, so every text is escaped, and the
page's content security policy names its scripts by their hashes: nothing else can run or be loaded.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import vl_convert

from ..runs.records import RunRecord
from .experiment_settings import experiments, flat
from .figure import Entry, Figure, Panel
from .groups import Group, grouped
from .node_table import nodes_of
from .results import as_csv, as_json, in_words, notes, table
from .table import Table
from .theme import PAGE, config

HALF = 580  # pixels of the page's width that one of two columns has
MAX_ROWS = 24  # of an open table: beyond that the heat maps say more


def page_of(runs: Sequence[RunRecord], figures: Sequence[Figure], title: str) -> str:
    """The whole page as text."""
    groups = grouped(runs)
    headings, rows = table(groups)
    folded = len(rows) > MAX_ROWS
    words = sum(heading in ("Defense", "Setting", "Attack") for heading in headings)
    shown = tuple(headings), tuple(map(tuple, rows))
    results = Table("results", "Results", notes(groups), *shown, n_words=words, folded=folded)
    nodes = nodes_of(runs)
    body = [
        section_of(results, downloads_of(groups)),
        *map(figure_of, figures),
        *map(section_of, filter(None, [nodes])),
    ]
    return assembled(runs, title, in_words(groups), body, figures)


def assembled(
    runs: Sequence[RunRecord], title: str, summary: str, body: Sequence[str], figures: Sequence[Figure]
) -> str:
    """A page of the given sections, with settings and versions at its end and what its charts need within it."""
    return Template(_file("page.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hash(_script())}",
        title=escape(title),
        style=_file("page.css"),
        summary=escape(summary),
        body="\n".join(body),
        settings=_settings(runs),
        surroundings=_surroundings(runs),
        charts=_json({"config": config(PAGE), "specs": _specs(figures)}),
        script=_script(),
    )


def section_of(shown: Table, after: str = "") -> str:
    """A table under its own heading."""
    content = _table(shown)
    if shown.folded:
        content = f"<details><summary>All {len(shown.rows)} rows</summary>{content}</details>"
    return (
        f'<section aria-labelledby="{shown.name}"><h2 id="{shown.name}">{escape(shown.title)}</h2>\n'
        f'{content}\n<p class="note">{escape(shown.note)}</p>{after}</section>'
    )


def downloads_of(groups: Sequence[Group]) -> str:
    """The data of every run, within the page."""
    files = (("CSV", "text/csv", as_csv(groups)), ("JSON", "application/json", as_json(groups)))
    links = [
        f'<a download="results.{name.lower()}" href="{_link(kind, text)}">{name}</a>' for name, kind, text in files
    ]
    return f'<p class="downloads">Data of every run: {" ".join(links)}</p>'


def _table(shown: Table) -> str:
    """A table that scrolls where it is too wide; its first column stays in sight."""
    names = shown.headings[shown.parts :]
    marks = [' class="number"' if index >= shown.n_words - shown.parts else "" for index in range(len(names))]
    head = "".join(f'<th scope="col"{mark}>{escape(name)}</th>' for name, mark in zip(names, marks, strict=True))
    lines, part = [], None
    for row in shown.rows:
        if shown.parts and row[0] != part:
            part = row[0]
            lines.append(f'<tr class="part"><th scope="rowgroup" colspan="{len(names)}">{escape(part)}</th></tr>')
        first, *rest = row[shown.parts :]
        cells = "".join(f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(rest, marks[1:], strict=True))
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    body = "\n".join(lines)
    return (
        f'<div class="wide" role="region" aria-label="{escape(shown.title)}" tabindex="0"><table class="results">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def figure_of(figure: Figure, below: Table | None = None) -> str:
    """A figure under its own heading; its numbers, if given, open below it."""
    several = len(figure.panels) > 1 and all(panel.least <= HALF for panel in figure.panels)
    panels = "\n".join(_panel(panel, _place(figure, index)) for index, panel in enumerate(figure.panels))
    return (
        f'<section aria-labelledby="{figure.name}"><h2 id="{figure.name}">{escape(figure.title)}</h2>\n'
        f"<figure><figcaption>{escape(figure.caption)}</figcaption>\n{_legend(figure)}"
        f'<div class="panels{" several" if several else ""}">{panels}</div></figure>{_numbers(below)}</section>'
    )


def _numbers(below: Table | None) -> str:
    if below is None:
        return ""
    note = f'<p class="note">{escape(below.note)}</p>'
    return f"\n<details><summary>{escape(below.title)}</summary>{_table(below)}{note}</details>"


def _panel(panel: Panel, place: str) -> str:
    heading = f"<h3>{escape(panel.title)}</h3>" if panel.title else ""
    least = f' style="min-width: {panel.least}px"' if panel.least else ""
    chart = f'<div class="chart" id="{place}"{least}></div>'  # within another one: Vega renames what it draws in
    image = f'<div role="img" aria-label="{escape(panel.description)}">{chart}</div>'
    image = (
        f'<div class="wide" role="region" aria-label="{escape(panel.title)}" tabindex="0">{image}</div>'
        if least
        else image
    )
    return f'<div class="panel">{heading}{image}</div>'


def _legend(figure: Figure) -> str:
    names = [_sample(entry) + escape(entry.label) for entry in figure.legend]
    if figure.pickable:
        pairs = zip(figure.legend, names, strict=True)
        names = [
            f'<button type="button" aria-pressed="false" data-label="{escape(entry.label)}">{name}</button>'
            for entry, name in pairs
        ]
    return f'<ul class="legend">{"".join(f"<li>{name}</li>" for name in names)}</ul>\n' if names else ""


def _sample(entry: Entry) -> str:
    dash = f' stroke-dasharray="{" ".join(map(str, entry.dash))}"' if entry.dash else ""
    line = f'<path d="M0 6h22" stroke="{entry.color}" stroke-width="4"{dash}/>'
    return f'<svg class="sample" width="22" height="12" aria-hidden="true">{line}</svg>'


def _specs(figures: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    return {_place(figure, index): panel.spec() for figure in figures for index, panel in enumerate(figure.panels)}


def _place(figure: Figure, index: int) -> str:
    return f"chart-{figure.name}-{index}"


def _settings(runs: Sequence[RunRecord]) -> str:
    """Each experiment once; folded where there are several."""
    found = [(str(experiment.get("name", "unnamed")), _pairs(experiment)) for experiment in experiments(runs)]
    tables = [shown for _, shown in found]
    if len(found) > 1:
        tables = [f"<details><summary>{escape(name)}</summary>{shown}</details>" for name, shown in found]
    return "\n".join(tables) or '<p class="note">The records say nothing about the experiment.</p>'


def _surroundings(runs: Sequence[RunRecord]) -> str:
    """Data, device, command and versions; where runs differ, all values that were found."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        wanted = {key: run.header.get(key) for key in ("dataset", "device", "commit", "command", "versions")}
        for key, value in flat(wanted):
            if value is not None:
                found.setdefault(key.removeprefix("versions."), {})[str(value)] = None
    if not found:
        return '<p class="note">The records say nothing about versions and device.</p>'
    return _pairs({key: ", ".join(values) for key, values in found.items()})


def _pairs(values: Mapping[str, Any]) -> str:
    """A table of names and values; a nested table becomes a part with its own heading."""
    plain = {key: value for key, value in values.items() if not _nested(value)}
    parts = {key: value for key, value in values.items() if _nested(value)}
    body = "".join(_row(key, text) for key, text in flat(plain))
    for key, value in parts.items():
        body += f'<tr class="part"><th scope="rowgroup" colspan="2">{escape(str(key))}</th></tr>'
        body += "".join(_row(name, text) for name, text in flat(value))
    return f'<table class="pairs"><tbody>{body}</tbody></table>'


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list | tuple) and any(map(_nested, value)))


def _row(name: str, value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'


def _link(kind: str, text: str) -> str:
    return f"data:{kind};charset=utf-8;base64,{b64encode(text.encode()).decode()}"


def _json(value: Any) -> str:
    """JSON that can stand inside a script element: no tag can begin in it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


@cache  # takes a second
def _script() -> str:
    """The page's own script with Vega, Vega-Lite and Vega-Embed in it; nothing in them may end the script element."""
    return str(vl_convert.javascript_bundle(_file("page.js"))).replace("</script", "<\\/script")


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
