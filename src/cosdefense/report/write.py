"""Writes a report: figures as PNG, tables as markdown, and one page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..catalog.extras import extra_libraries
from ..runs.records import RunRecord
from .groups import group_runs
from .large_grids import list_large_grids, make_grid_tables
from .pair_tables import make_pair_tables
from .table import tables_to_markdown

if TYPE_CHECKING:
    from .figure import Figure


@dataclass(frozen=True)
class Report:
    """Where the report was written."""

    page: Path
    figures: tuple[Path, ...]  # PNG, only those that had data
    tables: Path | None = None  # markdown, where there are several attacks


def write_report(runs: Sequence[RunRecord], out: Path, title: str) -> Report:
    """Write `report.html` and its figures as PNG into the folder `out`, which is created if it is missing.

    Where there are several attacks, also `tables.md`: defenses down and attacks across.
    """
    if not runs:
        raise ValueError("a report needs at least one run, got none")
    groups = group_runs(runs)
    grids = list_large_grids(groups)
    tables = make_grid_tables(grids) if grids else make_pair_tables(groups)
    written = write_tables(out, tables_to_markdown(tables, title)) if tables else None
    with drawing_libraries():
        from .figures import draw_figures
        from .page import render_report
    figures = draw_figures(runs)
    return write_files(out, figures, render_report(runs, figures, title), written)


def drawing_libraries() -> AbstractContextManager[None]:
    """Wraps imports of the drawing libraries, without which the rest of the package works."""
    return extra_libraries("report", "a report", "altair", "vl_convert", "PIL", "jinja2", "markupsafe")


def write_tables(out: Path, text: str) -> Path:
    """Write the markdown tables of a study."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "tables.md"
    path.write_text(text, encoding="utf-8")
    return path


def write_files(out: Path, figures: Sequence[Figure], page: str, tables: Path | None = None) -> Report:
    """Write the figures and the page."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = tuple(out / f"{figure.name}.png" for figure in figures)
    for figure, picture in zip(figures, pictures, strict=True):
        picture.write_bytes(figure.png())
    (out / "report.html").write_text(page, encoding="utf-8")
    return Report(out / "report.html", pictures, tables)
