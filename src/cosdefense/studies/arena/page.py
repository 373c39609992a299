"""The page of the arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...report.figure import Figure
from ...report.groups import group_runs
from ...report.page import Section, render_page
from ...report.table import Table
from ...runs.records import RunRecord
from .defense_results import Setting
from .tables import describe_arena


def render_arena_page(
    runs: Sequence[RunRecord],
    settings: Sequence[Setting],
    tables: Mapping[str, Table],
    figures: Mapping[str, Figure],
    title: str,
) -> str:
    """The whole page as text.

    For every setting: design beside test seeds, heat maps with the accuracies below them, the ranking, and curves.
    """
    sections = []
    for setting in settings:
        figure, accuracies = figures.get(f"arena-{setting.name}"), tables[f"accuracies-{setting.name}"]
        if comparison := tables.get(f"seeds-{setting.name}"):
            sections.append(Section.of_table(comparison))
        sections.append(Section.of_figure(figure, accuracies) if figure else Section.of_table(accuracies))
        sections.append(Section.of_table(tables[f"defenses-{setting.name}"]))
        if lines := figures.get(f"curves-{setting.name}"):
            sections.append(Section.of_figure(lines))
    sections.append(Section.of_downloads(group_runs(runs)))
    return render_page(runs, title, describe_arena(settings), sections)
