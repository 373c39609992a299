"""Accuracy over the rounds, a color for each defense."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from . import rows as numbers
from .figure import Entry, Panel
from .groups import Group
from .marks import attack_start, chart, legend, named_colors, named_dashes, round_axis, share_axis, stacked, tip


def curves(groups: Sequence[Group], names: Sequence[Entry], title: str, key: str = "accuracy") -> Panel:
    """The mean over seeds as a line, with a band from the lowest to the highest seed where there are several."""
    rows = [row for group in groups for row in numbers.accuracy_rows(group, key)]
    entries = legend(names, symbolType="stroke", symbolStrokeWidth=3, symbolSize=200)
    picked = alt.param("picked", value=None)
    faded = alt.when("!picked || datum.defense === picked").then(alt.value(1)).otherwise(alt.value(0.12))
    color = named_colors("defense", names, entries)
    marks = chart().encode(x=round_axis(), y=share_axis("mean", "test accuracy"), color=color, opacity=faded)
    line = marks.mark_line(strokeWidth=2.25, strokeJoin="round")
    line = line.encode(strokeDash=named_dashes("defense", names, entries))
    tips = [tip("defense:N"), tip("round:Q"), tip("mean:Q", ".1%", "accuracy"), tip("seeds:Q")]
    touch = marks.mark_point(size=80, filled=True).encode(opacity=alt.value(0), tooltip=tips)
    layers = [line, touch, *attack_start(groups, rows)]
    if any(row["seeds"] > 1 for row in rows):
        layers.insert(0, marks.mark_area(fillOpacity=0.18).encode(y=share_axis("low", "test accuracy"), y2="high:Q"))
    ends = ", ".join(f"{row['defense']} {row['mean']:.1%}" for row in {row["defense"]: row for row in rows}.values())
    said = f"Accuracy over the rounds, {title or 'all runs'}; at the end: {ends}."
    return Panel(title, said, rows, stacked(layers, 320).add_params(picked))
