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

from ..records import RunRecord
from .figure import Entry, Figure, Panel
from .groups import Group, grouped
from .results import as_csv, as_json, in_words, notes, table
from .settings import experiments, flat
from .theme import PAGE, config

HALF = 580  # pixels of the page's width that one of two columns has
MAX_ROWS = 24  # of an open table: beyond that the heat maps say more


def page_of(runs: Sequence[RunRecord], figures: Sequence[Figure], title: str) -> str:
    """The whole page as text."""
    groups = grouped(runs)
    return Template(_file("page.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hash(_script())}",
        title=escape(title),
        style=_file("page.css"),
        summary=escape(in_words(groups)),
        results=_results(groups),
        note=escape(notes(groups)),
        csv=_link("text/csv", as_csv(groups)),
        json=_link("application/json", as_json(groups)),
        figures="\n".join(_figure(figure) for figure in figures),
        settings=_settings(runs),
        surroundings=_surroundings(runs),
        charts=_json({"config": config(PAGE), "specs": _specs(figures)}),
        script=_script(),
    )


def _results(groups: Sequence[Group]) -> str:
    headings, rows = table(groups)
    head = "".join(f'<th scope="col"{_number(heading)}>{escape(heading)}</th>' for heading in headings)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(
            f"<td{_number(heading)}>{escape(cell)}</td>" for heading, cell in zip(headings[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    shown = (
        '<div class="wide" role="region" aria-labelledby="results" tabindex="0"><table class="results">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )
    return shown if len(rows) <= MAX_ROWS else f"<details><summary>All {len(rows)} rows</summary>{shown}</details>"


def _number(heading: str) -> str:
    return "" if heading in ("Defense", "Attack") else ' class="number"'


def _figure(figure: Figure) -> str:
    several = len(figure.panels) > 1 and all(panel.least <= HALF for panel in figure.panels)
    panels = "\n".join(_panel(panel, _place(figure, index)) for index, panel in enumerate(figure.panels))
    return (
        f'<section aria-labelledby="{figure.name}"><h2 id="{figure.name}">{escape(figure.title)}</h2>\n'
        f"<figure><figcaption>{escape(figure.caption)}</figcaption>\n{_legend(figure)}"
        f'<div class="panels{" several" if several else ""}">{panels}</div></figure></section>'
    )


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
    """Each experiment once."""
    tables = [_pairs(experiment) for experiment in experiments(runs)]
    return "\n".join(tables) or '<p class="note">The records say nothing about the experiment.</p>'


def _surroundings(runs: Sequence[RunRecord]) -> str:
    """Data, device and versions; where runs differ, all values that were found."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        wanted = {key: run.header.get(key) for key in ("dataset", "device", "versions")}
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
