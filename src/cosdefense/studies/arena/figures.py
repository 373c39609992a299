"""The arena as heat maps: defenses down, attacks across."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from ...report.chart_data import Row
from ...report.chart_elements import bare_axis, cells, heat, tip
from ...report.figure import Figure, Panel
from ...report.groups import under
from .defense_results import DefenseResult, Setting
from .tables import SIDES


def draw_arena_figures(settings: Sequence[Setting]) -> dict[str, Figure]:
    """One per setting that has something to be measured by; defenses with an oracle in their own panel."""
    figures = [_draw_figure(setting) for setting in settings if setting.clean]
    return {figure.name: figure for figure in figures}


def _draw_figure(setting: Setting) -> Figure:
    sides = [(SIDES[oracle], setting.results_with(oracle)) for oracle in SIDES]
    panels = tuple(_draw_heat_map(setting, title, results) for title, results in sides if results)
    caption = "Points of accuracy lost against plain averaging without an attack, the mean over seeds in the last "
    caption += "tenth of the rounds. The deeper the color, the more of that accuracy is left. "
    caption += "The defense with the best worst case stands first; attacks that know the defense do not count in that."
    width = max(420, 62 * len(setting.attacks))
    return Figure(f"arena-{setting.name}", f"{setting.title}: points lost", caption, panels, width)


def _draw_heat_map(setting: Setting, title: str, results: Sequence[DefenseResult]) -> Panel:
    rows = [row for result in results for row in _make_rows(result, setting.clean or 1.0)]
    axis = bare_axis(labelAngle=-35, labelLimit=180)
    x = alt.X("attack:N", title=None, scale=cells(list(setting.attacks)), axis=axis)
    names = [result.defense for result in results]
    y = alt.Y("defense:N", title=None, scale=cells(names), axis=bare_axis(labelLimit=170))
    tips = [tip("defense:N"), tip("attack:N"), tip("accuracy:Q", ".1%"), tip("lost:Q", ".1f", "points lost")]
    chart = heat(x, y, "share", alt.Text("lost:Q", format=".1f"), tips).properties(height=36 * len(names))
    lost = "; ".join(f"{row['defense']} {under(row['attack'])} {row['lost']:.1f}" for row in rows)
    description = f"{setting.title}, points lost, {title.lower()}: {lost}."
    return Panel(title, description, rows, chart, min_width=150 + 50 * len(setting.attacks))


def _make_rows(result: DefenseResult, clean: float) -> list[Row]:
    return [
        {"defense": result.defense, "attack": attack, "accuracy": round(end, 5)}
        | {"share": round(min(1.0, end / clean), 5), "lost": result.lost(end)}
        for attack, end in result.accuracies.items()
    ]
