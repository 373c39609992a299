"""Defenses × attacks as heat maps: how it ended, who was rejected, what the attackers got."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from . import chart_data as numbers
from .chart_data import Row
from .chart_elements import bare_axis, cells, heat, tip
from .figure import Figure, Panel
from .groups import Group, under
from .large_grids import Grid
from .theme import HARM, HEAT

WORST = "worst case"  # the column beside those of the attacks
CELL_WIDTH, CELL_HEIGHT = 34, 22  # pixels: room for three digits
QUESTIONS = {  # key of the summary → the title over its heat map
    "final_accuracy": "Accuracy in the last evaluated round",
    "malicious_rejected": "Malicious updates rejected",
    "honest_rejected": "Honest updates rejected",
    "attack_success": "Attack success",
}
HIGH_IS_BAD = ("honest_rejected", "attack_success")
HUES = "Mean over seeds. Blue: the deeper, the better. Red: the deeper, the worse."


def grid_figure(groups: Sequence[Group]) -> Figure:
    """One heat map per question that has an answer for some pair, and per experiment; nothing with a single attack."""
    settings = list(dict.fromkeys(group.setting for group in groups))
    answers = [
        (
            f"{title}, {setting}" if setting else title,
            numbers.grid_rows([g for g in groups if g.setting == setting], key),
            key in HIGH_IS_BAD,
        )
        for setting in settings
        for key, title in QUESTIONS.items()
    ]
    panels = tuple(_make_panel(title, rows, is_bad) for title, rows, is_bad in answers if rows)
    width = max((90 * len({row["attack"] for row in panel.rows}) for panel in panels), default=0)
    caption = "Every cell is the mean over seeds."
    return Figure(
        "grid", "Every defense under every attack", caption, panels, max(420, width), marks=HUES, own_colors=True
    )


def _make_panel(title: str, rows: list[Row], is_bad: bool) -> Panel:
    description = "; ".join(f"{row['defense']} {under(row['attack'])} {row['share']:.1%}" for row in rows)
    words = f"{title}, every defense under every attack: {description}."
    return heat_map(title, words, rows, "attack", is_bad=is_bad)


def heat_map(
    title: str, description: str, rows: list[Row], across: str, order: Sequence[str] = (), *, is_bad: bool = False
) -> Panel:
    """Shares by defense (down, in the given order where there is one) and something else (across).

    `is_bad`: the more, the worse.
    """
    columns, present = (list(dict.fromkeys(row[key] for row in rows)) for key in (across, "defense"))
    defenses = [name for name in order if name in present] + [name for name in present if name not in order]
    x = alt.X(f"{across}:N", title=None, scale=cells(columns), axis=bare_axis(labelAngle=-35, labelLimit=180))
    y = alt.Y("defense:N", title=None, scale=cells(defenses), axis=bare_axis(labelLimit=170))
    tips = [tip("defense:N"), tip(f"{across}:N"), tip("share:Q", ".1%", title.lower())]
    text, colors = alt.Text("share:Q", format=".1%"), HARM if is_bad else HEAT
    layers = heat(x, y, "share", text, tips, colors=colors).properties(height=36 * len(defenses))
    return Panel(title, description, rows, layers, 150 + 56 * len(columns))


def large_grid_figure(grid: Grid, number: int = 0) -> Figure:
    """Narrow cells in one color scale; a panel for all defenses that need the same, the best worst case first."""
    panels = tuple(_make_large_panel(grid, side, defenses) for side, defenses in grid.sides())
    caption = f"{grid.question.note} The mean over seeds. The column at the left is the worst case of its row, attacks "
    caption += "stand from the least to the most harmful, and defenses with the best worst case first."
    name = f"{grid.question.name}-{number + 1}" if number else grid.question.name
    hue = "Red: the deeper, the worse." if grid.question.high_is_bad else "Blue: the deeper, the better."
    width = max(420, CELL_WIDTH * (1 + len(grid.attacks)))
    return Figure(name, grid.title, caption, panels, width, marks=f"{caption} {hue}", scale=1.25)


def _make_large_panel(grid: Grid, side: str, defenses: Sequence[str]) -> Panel:
    rows = [_make_cell(grid, name, WORST, grid.worst(name)[0]) for name in defenses]
    rows += [
        _make_cell(grid, name, attack, grid.values[name, attack])
        for name in defenses
        for attack in grid.attacks
        if (name, attack) in grid.values
    ]
    axis = bare_axis(labelAngle=-45, labelLimit=220, orient="top", labelFontSize=11)
    x = alt.X("attack:N", title=None, scale=cells([WORST, *grid.attacks]), axis=axis)
    y = alt.Y("defense:N", title=None, scale=cells(list(defenses)), axis=bare_axis(labelLimit=170))
    tips = [tip("defense:N"), tip("attack:N"), tip("text:N", title=grid.question.title.lower())]
    unit = "share of the rounds left" if grid.question.in_rounds else grid.question.title.lower()
    legend = alt.Legend(title=unit, titleLimit=400, orient="right", format=".0%", gradientLength=140, tickCount=3)
    colors, height = HARM if grid.question.high_is_bad else HEAT, CELL_HEIGHT * len(defenses)
    chart = heat(x, y, "share", alt.Text("text:N"), tips, legend, colors=colors).properties(height=height)
    description = "; ".join(f"{row['defense']} {row['text']}" for row in rows[: len(defenses)])
    width = 170 + CELL_WIDTH * (1 + len(grid.attacks))
    return Panel(side, f"{grid.title}, {side.lower()}, worst cases: {description}.", rows, chart, width)


def _make_cell(grid: Grid, defense: str, attack: str, value: float) -> Row:
    share = round(min(1.0, value / grid.top), 5)
    return {"defense": defense, "attack": attack, "share": share, "text": grid.text(value, 0)}
