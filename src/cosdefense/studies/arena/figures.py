"""The arena as heat maps: defenses down, attacks across."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from ...report.chart_data import Row
from ...report.chart_elements import bare_axis, cells, heat, tip
from ...report.figure import Figure, Panel
from ...report.groups import under
from .standings import Field, Fighter
from .tables import SIDES


def arena_figures(fields: Sequence[Field]) -> dict[str, Figure]:
    """One per field that has something to be measured by; defenses with an oracle in a panel of their own."""
    figures = [_figure(field) for field in fields if field.clean]
    return {figure.name: figure for figure in figures}


def _figure(field: Field) -> Figure:
    sides = [(SIDES[oracle], field.side(oracle)) for oracle in SIDES]
    panels = tuple(_heat_map(field, title, fighters) for title, fighters in sides if fighters)
    caption = "Points of accuracy lost against plain averaging without an attack, the mean over seeds in the last "
    caption += "tenth of the rounds. The deeper the color, the more of that accuracy is left. "
    caption += "The defense with the best worst case stands first; the adaptive attack does not count in that."
    width = max(420, 62 * len(field.attacks))
    return Figure(f"arena-{field.name}", f"{field.title}: points lost", caption, panels, width)


def _heat_map(field: Field, title: str, fighters: Sequence[Fighter]) -> Panel:
    rows = [row for fighter in fighters for row in _rows(fighter, field.clean or 1.0)]
    x = alt.X("attack:N", title=None, scale=cells(list(field.attacks)), axis=bare_axis(labelAngle=-35, labelLimit=180))
    names = [fighter.defense for fighter in fighters]
    y = alt.Y("defense:N", title=None, scale=cells(names), axis=bare_axis(labelLimit=170))
    tips = [tip("defense:N"), tip("attack:N"), tip("accuracy:Q", ".1%"), tip("lost:Q", ".1f", "points lost")]
    drawn = heat(x, y, "share", alt.Text("lost:Q", format=".1f"), tips).properties(height=36 * len(names))
    least = 150 + 50 * len(field.attacks)
    said = "; ".join(f"{row['defense']} {under(row['attack'])} {row['lost']:.1f}" for row in rows)
    return Panel(title, f"{field.title}, points lost, {title.lower()}: {said}.", rows, drawn, least)


def _rows(fighter: Fighter, clean: float) -> list[Row]:
    return [
        {"defense": fighter.defense, "attack": attack, "accuracy": round(end, 5)}
        | {"share": round(min(1.0, end / clean), 5), "lost": fighter.lost(end)}
        for attack, end in fighter.accuracies.items()
    ]
