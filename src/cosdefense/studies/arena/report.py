"""Writes the report of an arena."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...report.table import tables_to_markdown
from ...report.write import Report, drawing_libraries, write_files, write_tables
from ...runs.records import RunRecord
from .defense_results import list_settings
from .tables import describe_arena, make_arena_tables
from .tuned import MAX_SETTINGS, TUNED, Tuned
from .tuning import TuningPlan, make_tuning_table, write_tuned


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


def write_tuning_report(runs: Sequence[RunRecord], out: Path, title: str, plan: TuningPlan) -> Report:
    """Write what was chosen for each rule (`tuned.toml`, which the arena reads), then a table and a page about it."""
    tuned = plan.choose(runs)
    write_tuned(out / TUNED, tuned)
    table, words = make_tuning_table(tuned), _describe_tuning(plan, tuned)
    written = write_tables(out, tables_to_markdown({table.name: table}, title, words))
    with drawing_libraries():
        from ...report.page import Section, render_page
    return write_files(out, [], render_page(runs, title, words, [Section.of_table(table)]), written)


def _describe_tuning(plan: TuningPlan, tuned: Tuned) -> str:
    text = f"{len(tuned.chosen)} rules have a setting chosen among at most {MAX_SETTINGS}; the arena reads {TUNED}."
    missing = [rule.label for rule in plan.rules if rule.label not in {one.label for one in tuned.chosen}]
    return f"{text} Not all runs are there of {', '.join(missing)}: nothing is chosen for them." if missing else text
