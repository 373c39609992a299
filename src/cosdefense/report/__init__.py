"""Turns records into figures (PNG) and one self-contained HTML page that works offline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..records import RunRecord
from .paper import paper_of
from .paper_tables import paper_tables
from .table import markdown_of

if TYPE_CHECKING:
    from .figure import Figure

__all__ = ["MissingReportExtra", "Report", "write_arena_report", "write_paper_report", "write_report"]


@dataclass(frozen=True)
class Report:
    """Where the report was written."""

    page: Path
    figures: tuple[Path, ...]  # PNG, only those that had data
    tables: Path | None = None  # markdown, where the report has more than the one table of its page


class MissingReportExtra(ImportError):
    """The drawing libraries are not installed."""


def write_report(runs: Sequence[RunRecord], out: Path, title: str) -> Report:
    """Write `report.html` and its figures as PNG into the folder `out`, which is made if it is missing."""
    if not runs:
        raise ValueError("a report needs at least one run, got none")
    with _drawing_libraries():
        from .figures import figures_of
        from .page import page_of
    figures = figures_of(runs)
    return _written(out, figures, page_of(runs, figures, title))


def write_paper_report(runs: Sequence[RunRecord], out: Path, title: str) -> Report:
    """The same for runs that repeat the paper's experiments, after `tables.md`; what was not run is left out.

    Only the paper's own figures and the heat maps become PNG; the page has more.
    """
    paper = paper_of(runs)
    tables = paper_tables(paper)
    _write_tables(out, markdown_of(tables, title))
    with _drawing_libraries():
        from .paper_figures import paper_figures
        from .paper_page import paper_page_of
    figures = paper_figures(paper)
    page = paper_page_of(runs, paper, tables, figures, title)
    shown = [figure for name, figure in figures.items() if name.startswith(("figure", "grid"))]
    return replace(_written(out, shown, page), tables=out / "tables.md")


def write_arena_report(runs: Sequence[RunRecord], out: Path, title: str) -> Report:
    """The same for runs of the arena."""
    from .arena import fields_of  # it asks the catalog, and so torch, what each defense needs
    from .arena_tables import arena_tables, in_words

    fields = fields_of(runs)
    tables = arena_tables(fields)
    _write_tables(out, markdown_of(tables, title, in_words(fields)))
    with _drawing_libraries():
        from .arena_figures import arena_figures
        from .arena_page import arena_page_of
    figures = arena_figures(fields)
    page = arena_page_of(runs, fields, tables, figures, title)
    return replace(_written(out, list(figures.values()), page), tables=out / "tables.md")


@contextmanager
def _drawing_libraries() -> Iterator[None]:
    """Imports are made where they are needed, so that the package works without the drawing libraries."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("altair", "vl_convert"):
            raise
        raise MissingReportExtra(
            f"a report needs altair and vl-convert-python, {error.name} was not found: pip install 'cosdefense[report]'"
        ) from error


def _write_tables(out: Path, text: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.md").write_text(text, encoding="utf-8")


def _written(out: Path, figures: Sequence[Figure], page: str) -> Report:
    out.mkdir(parents=True, exist_ok=True)
    pictures = tuple(out / f"{figure.name}.png" for figure in figures)
    for figure, picture in zip(figures, pictures, strict=True):
        picture.write_bytes(figure.png())
    (out / "report.html").write_text(page, encoding="utf-8")
    return Report(out / "report.html", pictures)
