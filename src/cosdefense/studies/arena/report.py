"""Writes the report of an arena."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...report.table import markdown_of
from ...report.write import Report, drawing_libraries, write_files, write_tables
from ...runs.records import RunRecord
from .standings import fields_of
from .tables import arena_tables, in_words


def write_arena_report(runs: Sequence[RunRecord], out: Path, title: str) -> Report:
    """Write `tables.md`, then figures and page, for runs of the arena."""
    fields = fields_of(runs)
    tables = arena_tables(fields)
    written = write_tables(out, markdown_of(tables, title, in_words(fields)))
    with drawing_libraries():
        from .figures import arena_figures
        from .page import arena_page_of
    figures = arena_figures(fields)
    return write_files(out, list(figures.values()), arena_page_of(runs, fields, tables, figures, title), written)
