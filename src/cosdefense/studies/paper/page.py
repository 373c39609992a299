"""The page of the reproduced paper."""

from __future__ import annotations

from collections.abc import Sequence

from ...report.figure import Figure
from ...report.groups import grouped
from ...report.page import assembled, downloads_of, figure_of, section_of
from ...report.table import Table
from ...runs.records import RunRecord
from .tables import in_words
from .views import Paper

BELOW = {"figure1": "layers", "figure2": "traces", "figure4": "attackers", "figure6": "skew"}  # a figure's numbers


def paper_page_of(
    runs: Sequence[RunRecord], paper: Paper, tables: dict[str, Table], figures: dict[str, Figure], title: str
) -> str:
    """The whole page as text: tables, figures, and the data of all runs."""
    shown = [name for name, below in BELOW.items() if name in figures and below in tables]
    below = {name: tables[BELOW[name]] for name in shown}
    alone = [table for table in tables.values() if table not in below.values()]
    body = [section_of(table) for table in alone]
    body += [figure_of(figure, below.get(name)) for name, figure in figures.items()]
    body += [f'<section aria-labelledby="data"><h2 id="data">Downloads</h2>{downloads_of(grouped(runs))}</section>']
    return assembled(runs, title, in_words(paper), body, list(figures.values()))
