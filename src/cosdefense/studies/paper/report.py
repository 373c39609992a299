"""Writes the report of the reproduced paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...report.table import tables_to_markdown
from ...report.write import Report, drawing_libraries, write_files, write_tables
from ...runs.records import RunRecord
from .drift import DriftRun
from .tables import make_paper_tables
from .views import select_paper_runs


def write_paper_report(runs: Sequence[RunRecord], out: Path, title: str, drift: Sequence[DriftRun] = ()) -> Report:
    """Write `tables.md`, then figures and page, for runs of the paper's experiments; what was not run is left out.

    Only the paper's own figures, those of its claims and the heat maps become PNG; the page has more.
    """
    paper = select_paper_runs(runs, drift)
    tables = make_paper_tables(paper)
    tables_path = write_tables(out, tables_to_markdown(tables, title))
    with drawing_libraries():
        from .figures import draw_paper_figures
        from .page import render_paper_page
    figures = draw_paper_figures(paper)
    page = render_paper_page(runs, paper, tables, figures, title)
    selected = [figure for name, figure in figures.items() if name.startswith(("figure", "grid", "claim"))]
    return write_files(out, selected, page, tables_path)
