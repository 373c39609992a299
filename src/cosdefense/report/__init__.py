"""Turns records into figures (PNG) and one self-contained HTML page that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..records import RunRecord

__all__ = ["MissingReportExtra", "Report", "write_report"]


@dataclass(frozen=True)
class Report:
    """Where the report was written."""

    page: Path
    figures: tuple[Path, ...]  # PNG, only those that had data


class MissingReportExtra(ImportError):
    """The drawing libraries are not installed."""


def write_report(runs: Sequence[RunRecord], out: Path, title: str) -> Report:
    """Write `report.html` and its figures as PNG into the folder `out`, which is made if it is missing."""
    if not runs:
        raise ValueError("a report needs at least one run, got none")
    try:  # here, so that the package works without the drawing libraries
        from .figures import figures_of
        from .page import page_of
    except ModuleNotFoundError as error:
        if error.name not in ("altair", "vl_convert"):
            raise
        raise MissingReportExtra(
            f"a report needs altair and vl-convert-python, {error.name} was not found: pip install 'cosdefense[report]'"
        ) from error
    out.mkdir(parents=True, exist_ok=True)
    figures = figures_of(runs)
    pictures = tuple(out / f"{figure.name}.png" for figure in figures)
    for figure, picture in zip(figures, pictures, strict=True):
        picture.write_bytes(figure.png())
    page = out / "report.html"
    page.write_text(page_of(runs, figures, title), encoding="utf-8")
    return Report(page, pictures)
