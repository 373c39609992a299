"""Defenses × attacks as heat maps: how it ended, who was rejected, what the attackers got."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from . import chart_data as numbers
from .chart_data import Row
from .chart_elements import bare_axis, cells, heat, tip
from .figure import Figure, Panel
from .groups import Group, under

QUESTIONS = {  # key of the summary → the title over its heat map
    "final_accuracy": "Accuracy in the last evaluated round",
    "malicious_rejected": "Malicious updates rejected",
    "honest_rejected": "Honest updates rejected",
    "attack_success": "Attack success",
}


def grid_figure(groups: Sequence[Group]) -> Figure:
    """One heat map per question that has an answer for some pair, and per experiment; nothing with a single attack."""
    settings = list(dict.fromkeys(group.setting for group in groups))
    answers = [
        (
            f"{title}, {setting}" if setting else title,
            numbers.grid_rows([g for g in groups if g.setting == setting], key),
        )
        for setting in settings
        for key, title in QUESTIONS.items()
    ]
    panels = tuple(_make_panel(title, rows) for title, rows in answers if rows)
    width = max((90 * len({row["attack"] for row in panel.rows}) for panel in panels), default=0)
    caption = "Every cell is the mean over seeds."
    return Figure("grid", "Every defense under every attack", caption, panels, max(420, width))


def _make_panel(title: str, rows: list[Row]) -> Panel:
    description = "; ".join(f"{row['defense']} {under(row['attack'])} {row['share']:.1%}" for row in rows)
    return heat_map(title, f"{title}, every defense under every attack: {description}.", rows, "attack")


def heat_map(title: str, description: str, rows: list[Row], across: str, order: Sequence[str] = ()) -> Panel:
    """Shares by defense (down, in the given order where there is one) and something else (across)."""
    columns, present = (list(dict.fromkeys(row[key] for row in rows)) for key in (across, "defense"))
    defenses = [name for name in order if name in present] + [name for name in present if name not in order]
    x = alt.X(f"{across}:N", title=None, scale=cells(columns), axis=bare_axis(labelAngle=-35, labelLimit=180))
    y = alt.Y("defense:N", title=None, scale=cells(defenses), axis=bare_axis(labelLimit=170))
    tips = [tip("defense:N"), tip(f"{across}:N"), tip("share:Q", ".1%", title.lower())]
    layers = heat(x, y, "share", alt.Text("share:Q", format=".1%"), tips).properties(height=36 * len(defenses))
    return Panel(title, description, rows, layers, 150 + 56 * len(columns))
