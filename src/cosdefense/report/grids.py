"""Defenses × attacks as heat maps: how it ended, who was rejected, what the attackers got."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from . import rows as numbers
from .figure import Figure, Panel
from .marks import bare_axis, cells, heat, tip
from .rows import Group, Row, under

QUESTIONS = {  # key of the summary → the title over its heat map
    "final_accuracy": "Accuracy in the last evaluated round",
    "malicious_rejected": "Malicious updates rejected",
    "honest_rejected": "Honest updates rejected",
    "attack_success": "Attack success",
}


def grid_figure(groups: Sequence[Group]) -> Figure:
    """One heat map per question that has an answer for some pair; nothing with a single attack."""
    answered = [(title, numbers.grid_rows(groups, key)) for key, title in QUESTIONS.items()]
    panels = tuple(_heat_map(title, rows) for title, rows in answered if rows)
    width = max((90 * len({row["attack"] for row in panel.rows}) for panel in panels), default=0)
    caption = "Every cell is the mean over seeds."
    return Figure("grid", "Every defense under every attack", caption, panels, max(420, width))


def _heat_map(title: str, rows: list[Row]) -> Panel:
    attacks, defenses = (list(dict.fromkeys(row[key] for row in rows)) for key in ("attack", "defense"))
    x = alt.X("attack:N", title=None, scale=cells(attacks), axis=bare_axis(labelAngle=-35, labelLimit=180))
    y = alt.Y("defense:N", title=None, scale=cells(defenses), axis=bare_axis())
    tips = [tip("defense:N"), tip("attack:N"), tip("share:Q", ".1%", title.lower())]
    drawn = heat(x, y, "share", alt.Text("share:Q", format=".1%"), tips).properties(height=36 * len(defenses))
    said = "; ".join(f"{row['defense']} {under(row['attack'])} {row['share']:.1%}" for row in rows)
    return Panel(title, f"{title}, every defense under every attack: {said}.", rows, drawn, 150 + 56 * len(attacks))
