"""Lines with bands around them: accuracy and other numbers over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import altair as alt

from . import chart_data as numbers
from .chart_data import Row
from .chart_elements import (
    attack_start,
    chart,
    legend,
    named_colors,
    named_dashes,
    round_axis,
    share_axis,
    stack,
    tip,
)
from .figure import Entry, Panel
from .groups import Group


def curves(
    groups: Sequence[Group],
    names: Sequence[Entry],
    title: str,
    key: str = "accuracy",
    others: Sequence[alt.Chart] = (),
) -> Panel:
    """Accuracy of each defense, the mean over seeds; the band reaches from the lowest to the highest seed.

    `others` are drawn on top.
    """
    rows = [row for group in groups for row in numbers.accuracy_rows(group, key)]
    tips = [tip("defense:N"), tip("round:Q"), tip("mean:Q", ".1%", "accuracy"), tip("seeds:Q")]
    layers = lines(rows, "defense", names, round_axis(), lambda key: share_axis(key, "test accuracy"), tips)
    ends = ", ".join(f"{row['defense']} {row['mean']:.1%}" for row in {row["defense"]: row for row in rows}.values())
    description = f"Accuracy over the rounds, {title or 'all runs'}; at the end: {ends}."
    return Panel(title, description, rows, pickable([*layers, *attack_start(groups, rows), *others], 320))


def explain_bands(panels: Sequence[Panel]) -> str:
    """What lines and bands mean."""
    several = any(row["seeds"] > 1 for panel in panels for row in panel.rows)
    text = "mean over seeds, not smoothed. Bands: lowest to highest seed." if several else "one run each, not smoothed."
    return f"Lines: {text}"


def lines(
    rows: Sequence[Row],
    field: str,
    names: Sequence[Entry],
    x: alt.X,
    y: Callable[[str], alt.Y],
    tips: list[alt.Tooltip],
) -> list[alt.Chart]:
    """One line per name from the rows' means, with a band where lowest and highest differ; the others fade when one
    is picked."""
    entries = legend(names, symbolType="stroke", symbolStrokeWidth=3, symbolSize=200)
    faded = alt.when(f"!picked || datum.{field} === picked").then(alt.value(1)).otherwise(alt.value(0.12))
    marks = chart().encode(x=x, y=y("mean"), color=named_colors(field, names, entries), opacity=faded)
    line = marks.mark_line(strokeWidth=2.25, strokeJoin="round").encode(strokeDash=named_dashes(field, names, entries))
    touch = marks.mark_point(size=80, filled=True).encode(opacity=alt.value(0), tooltip=tips)
    band = marks.mark_area(fillOpacity=0.18).encode(y=y("low"), y2="high:Q")
    return [band, line, touch] if any(row["low"] < row["high"] for row in rows) else [line, touch]


def pickable(layers: Sequence[alt.Chart], height: int) -> alt.LayerChart:
    return stack(layers, height).add_params(alt.param("picked", value=None))
