"""The page of the arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...report.figure import Figure
from ...report.groups import grouped
from ...report.page import assembled, downloads_of, figure_of, section_of
from ...report.table import Table
from ...runs.records import RunRecord
from .standings import Field
from .tables import in_words


def arena_page_of(
    runs: Sequence[RunRecord],
    fields: Sequence[Field],
    tables: Mapping[str, Table],
    figures: Mapping[str, Figure],
    title: str,
) -> str:
    """The whole page as text: for every field its heat maps, the accuracies below them, and the ranking."""
    body = []
    for field in fields:
        figure, numbers = figures.get(f"arena-{field.name}"), tables[f"accuracies-{field.name}"]
        body += [figure_of(figure, numbers) if figure else section_of(numbers)]
        body += [section_of(tables[f"defenses-{field.name}"])]
    body += [f'<section aria-labelledby="data"><h2 id="data">Downloads</h2>{downloads_of(grouped(runs))}</section>']
    return assembled(runs, title, in_words(fields), body, list(figures.values()))
