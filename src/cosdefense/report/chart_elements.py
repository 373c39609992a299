"""The pieces that charts are made of: axes, legends, cells, the rule where the attack begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from typing import Any

import altair as alt

from .chart_data import Row
from .figure import DATA, Entry
from .groups import Group
from .theme import HEAT, TRUTH


def chart() -> alt.Chart:
    return alt.Chart(alt.NamedData(DATA))


def stack(layers: Sequence[alt.Chart], height: int) -> alt.LayerChart:
    return alt.LayerChart(layer=list(layers)).properties(height=height)


def named_colors(field: str, names: Sequence[Entry], legend: alt.Legend | None) -> alt.Color:
    """Each name in its own color."""
    domain, hues = [entry.label for entry in names], [entry.color for entry in names]
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=domain, range=hues), legend=legend)


def named_dashes(field: str, names: Sequence[Entry], legend: alt.Legend | None) -> alt.StrokeDash:
    """Each name in its own pattern."""
    domain, patterns = [entry.label for entry in names], [list(entry.dash) for entry in names]
    return alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=domain, range=patterns), legend=legend)


def heat(
    x: alt.X,
    y: alt.Y,
    key: str,
    text: alt.Text,
    tooltip: list[alt.Tooltip],
    legend: alt.Legend | None = None,
    *,
    top: float = 1.0,
    colors: tuple[str, str] = HEAT,
) -> alt.LayerChart:
    """Numbers from 0 to `top`, such as shares, as colored cells with words on them."""
    cells = chart().encode(x=x, y=y, tooltip=tooltip)
    scale = alt.Scale(domain=[0, top], range=list(colors), clamp=True)
    color = alt.Color(f"{key}:Q", scale=scale, legend=legend)
    words = cells.encode(text=text)
    pale = words.transform_filter(f"datum.{key} < {0.75 * top:g}").mark_text(style="on-pale")
    deep = words.transform_filter(f"datum.{key} >= {0.75 * top:g}").mark_text(style="on-deep")
    return alt.LayerChart(layer=[cells.mark_rect(cornerRadius=3).encode(color=color), pale, deep])


def attack_start(groups: Sequence[Group], rows: Sequence[Row]) -> list[alt.Chart]:
    """A rule with a few words above it where the attack begins."""
    first = min(row["round"] for row in rows)
    starts = sorted({start for group in groups for start in group.attack_starts if start > first})
    if not starts:
        return []
    marks = alt.Chart(alt.InlineData(values=[{"round": start} for start in starts])).encode(x="round:Q")
    late = starts[-1] > 0.7 * max(row["round"] for row in rows)
    words = marks.mark_text(
        text="attack starts", style="guide-text", align="right" if late else "left", dy=-6, baseline="bottom"
    )
    return [marks.mark_rule(style="guide-rule"), words.encode(y=alt.value(0))]


def round_axis(key: str = "round") -> alt.X:
    axis = alt.Axis(grid=False, tickCount=8, tickMinStep=1)
    return alt.X(f"{key}:Q", title=key, axis=axis, scale=alt.Scale(nice=False, zero=False))


def share_axis(key: str, title: str) -> alt.Y:
    axis = alt.Axis(format=".0%", tickCount=5)
    return alt.Y(f"{key}:Q", title=title, axis=axis, scale=alt.Scale(domain=[0, 1]))


def score_axis(key: str, rows: Sequence[Row]) -> alt.Y:
    """Logarithmic where scores are of very different size; what is below a third of the lowest positive mean is cut."""
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    least = min((row["mean"] for row in rows if row["mean"] > 0), default=high)  # ties can make whole bins zero
    if low < 0 or high <= 50 * least:
        return alt.Y(f"{key}:Q", title="score", scale=alt.Scale(zero=False))
    bottom = max(low, least / 3)
    powers = [10.0**power for power in range(ceil(log10(bottom)), floor(log10(high)) + 1)]
    scale = alt.Scale(type="log", domain=[bottom, high], nice=False, clamp=True)
    return alt.Y(f"{key}:Q", title="score", scale=scale, axis=alt.Axis(values=powers, format="~g"))


def truth_color(rows: Sequence[Row]) -> alt.Color:
    """Honest and malicious in their colors."""
    entries = truth_legend(rows)
    names = legend(entries, symbolType="square") if entries else None
    return alt.Color("who:N", scale=alt.Scale(domain=list(TRUTH), range=list(TRUTH.values())), legend=names)


def truth_legend(rows: Iterable[Row]) -> tuple[Entry, ...]:
    """What the colors mean; nothing where that is unknown."""
    known = any(row["who"] != "client" for row in rows)
    return tuple(Entry(who, color) for who, color in TRUTH.items() if who != "client") if known else ()


def legend(entries: Sequence[Entry], **options: Any) -> alt.Legend:
    """Above the chart, in as many columns as fit beside each other on paper."""
    widest = min(220, 45 + 7 * max(len(entry.label) for entry in entries))
    columns = max(1, 640 // widest)
    names = [entry.label for entry in entries]
    return alt.Legend(
        orient="top", title=None, values=names, columns=columns, labelLimit=180, symbolOpacity=1, offset=24, **options
    )


def cells(domain: list[str]) -> alt.Scale:
    return alt.Scale(domain=domain, paddingInner=0.04, paddingOuter=0)


def bare_axis(**options: Any) -> alt.Axis:
    return alt.Axis(domain=False, ticks=False, **options)


def tip(field: str, number: str = "", title: str = "") -> alt.Tooltip:
    return alt.Tooltip(field, title=title or field.split(":")[0], format=number or alt.Undefined)
