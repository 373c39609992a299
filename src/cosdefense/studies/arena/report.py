"""Writes the report of an arena."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...report.table import tables_to_markdown
from ...report.write import Report, drawing_libraries, write_files, write_tables
from ...runs.records import RunRecord
from .defense_results import list_settings
from .tables import describe_arena, make_arena_tables


def write_arena_report(runs: Sequence[RunRecord], out: Path, title: str) -> Report:
    """Write `tables.md`, then figures and page, for runs of the arena."""
    settings = list_settings(runs)
    tables = make_arena_tables(settings)
    written = write_tables(out, tables_to_markdown(tables, title, describe_arena(settings)))
    with drawing_libraries():
        from .figures import draw_arena_figures
        from .page import render_arena_page
    figures = draw_arena_figures(settings)
    return write_files(out, list(figures.values()), render_arena_page(runs, settings, tables, figures, title), written)
