"""The page of the reproduced paper."""

from __future__ import annotations

from collections.abc import Sequence

from ...report.figure import Figure
from ...report.groups import group_runs
from ...report.page import Section, render_page
from ...report.table import Table
from ...runs.records import RunRecord
from .tables import describe_paper
from .views import Paper

NUMBERS = {"figure1": "layers", "figure2": "traces", "figure4": "attackers", "figure6": "skew"} | {
    "claim-layers": "compared-layers",
    "claim-aggregators": "aggregators",
    "claim-backdoors": "backdoors",
}  # figure → its table


def render_paper_page(
    runs: Sequence[RunRecord], paper: Paper, tables: dict[str, Table], figures: dict[str, Figure], title: str
) -> str:
    """The whole page as text: tables, figures, and the data of all runs."""
    numbers = {name: tables[table] for name, table in NUMBERS.items() if name in figures and table in tables}
    sections = [Section.of_table(table) for table in tables.values() if table not in numbers.values()]
    sections += [Section.of_figure(figure, numbers.get(name)) for name, figure in figures.items()]
    sections.append(Section.of_downloads(group_runs(runs)))
    return render_page(runs, title, describe_paper(paper), sections)
