"""The page of the arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..records import RunRecord
from .figure import Figure
from .groups import grouped
from .page import assembled, downloads_of, figure_of, section_of
from .table import Table


def arena_page_of(
    runs: Sequence[RunRecord], tables: Mapping[str, Table], figures: Mapping[str, Figure], title: str, words: str
) -> str:
    """The whole page as text: for every field its heat maps, the accuracies below them, and the ranking."""
    below = {name: tables[name.replace("arena-", "accuracies-", 1)] for name in figures}
    body = [figure_of(figure, below[name]) for name, figure in figures.items()]
    body += [section_of(table) for table in tables.values() if table not in below.values()]
    body += [f'<section aria-labelledby="data"><h2 id="data">Downloads</h2>{downloads_of(grouped(runs))}</section>']
    return assembled(runs, title, words, body, list(figures.values()))
