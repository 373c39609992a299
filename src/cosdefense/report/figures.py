"""The figures of a report: a question each, answered by one or more charts."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from ..runs.records import RunRecord
from . import chart_data as numbers
from .chart_data import MAX_CLIENTS, MAX_DOTS, Row
from .chart_elements import (
    attack_start,
    bare_axis,
    cells,
    chart,
    heat,
    round_axis,
    score_axis,
    share_axis,
    stack,
    tip,
    truth_color,
    truth_legend,
)
from .curves import curves, explain_bands
from .figure import Entry, Figure, Panel
from .groups import Group, group_runs, under
from .heatmaps import grid_figure, large_grid_figure
from .large_grids import list_large_grids
from .looks import list_looks
from .theme import HEAT, TRUTH

MAX_PANELS = 12  # of one figure: a large grid is shown by its heat maps


def draw_figures(runs: Sequence[RunRecord]) -> list[Figure]:
    """Every figure that has data; of a large grid only its heat maps."""
    groups = group_runs(runs)
    if grids := list_large_grids(groups):
        names = [grid.question.name for grid in grids]
        return [large_grid_figure(grid, names[:index].count(names[index])) for index, grid in enumerate(grids)]
    figures = [grid_figure(groups), _accuracy(groups), scores(groups), _points(groups), rejections(groups)]
    figures += [confusion(groups), _split(groups)]
    return [figure for figure in figures if figure.panels]


def _accuracy(groups: Sequence[Group]) -> Figure:
    defenses = list(dict.fromkeys(group.defense for group in groups))
    names = list_looks(defenses)
    worlds = list(dict.fromkeys(group.circumstances for group in groups))
    members = [[group for group in groups if group.circumstances == world] for world in worlds]
    evaluated = [some for some in members if any(map(numbers.accuracy_rows, some))]
    panels = tuple(curves(some, names, some[0].circumstances) for some in evaluated)
    caption = "Accuracy on held-out data."
    caption += " Choose a name to see it alone." if len(names) > 1 else ""
    marks = explain_bands(panels)
    layout = (640, 1) if len(panels) == 1 else (460, 2)
    return Figure("accuracy", "Accuracy over the rounds", caption, panels, *layout, names, marks, len(names) > 1)


def scores(groups: Sequence[Group]) -> Figure:
    """The scores that each filter gave to honest and malicious clients."""
    judged = [(group, name) for group in groups for name in group.filters]
    panels = tuple(_score_bands(group, name, _title(group, groups)) for group, name in judged[:MAX_PANELS])
    names = _truths(panels)
    title = "Scores of honest and malicious clients" if names else "Scores of the clients"
    caption = f"The scores that each filter gave to the clients.{_left_out(judged)}"
    marks = "Lines: means. Bands: the middle 80% of the scores."
    return Figure("scores", title, caption, panels, 460, min(2, len(panels) or 1), names, marks)


def _score_bands(group: Group, filter_name: str, title: str) -> Panel:
    rows = numbers.score_rows(group, filter_name)
    low, mean = (score_axis(key, rows) for key in ("low", "mean"))
    marks = chart().encode(x=round_axis(), color=truth_color(rows))
    band = marks.mark_area(opacity=0.2).encode(y=low, y2="high:Q")
    tips = [tip("who:N", title="clients"), tip("round:Q"), tip("mean:Q", ".3~g", "mean score"), tip("count:Q")]
    line = marks.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=26)).encode(y=mean, tooltip=tips)
    title += "" if filter_name == group.defense else f": {filter_name}"
    description = f"Scores over the rounds, {title}; on average {_averages(rows, 'mean', 'count', '.3g')}."
    return Panel(title, description, rows, stack([band, line, *attack_start([group], rows)], 220))


def _points(groups: Sequence[Group]) -> Figure:
    pictures = [(group, name) for group in groups for name in group.pictures]
    panels = tuple(_scatter(group, name, _title(group, groups)) for group, name in pictures[:MAX_PANELS])
    caption = f"The clients in the two dimensions that a filter looks at; the last {MAX_DOTS} updates it judged. "
    caption += "Every round has its own axes, turned so that the longer tail lies to the right and top. "
    caption += "Crosses were rejected." + _left_out(pictures)
    return Figure(
        "points", "Clients in two dimensions", caption, panels, 460, min(2, len(panels) or 1), _truths(panels)
    )


def _scatter(group: Group, filter_name: str, title: str) -> Panel:
    rows = numbers.point_rows(group, filter_name)
    axis = alt.Axis(grid=False, tickCount=5)
    fate = alt.Scale(domain=["accepted", "rejected"], range=["circle", "cross"])
    tips = [tip("client:N"), tip("who:N", title="was"), tip("fate:N", title="verdict"), tip("round:Q")]
    dots = (
        chart()
        .mark_point(filled=True, size=45, opacity=0.7)
        .encode(
            x=alt.X("x:Q", title="first component", axis=axis, scale=alt.Scale(zero=False)),
            y=alt.Y("y:Q", title="second component", axis=axis, scale=alt.Scale(zero=False)),
            color=truth_color(rows),
            shape=alt.Shape("fate:N", scale=fate, legend=None),
            tooltip=tips,
        )
    )
    counts = ", ".join(
        f"{who} {sum(row['who'] == who for row in rows)}" for who in dict.fromkeys(r["who"] for r in rows)
    )
    return Panel(title, f"Clients in two dimensions, {title}: {counts}.", rows, stack([dots], 320))


def rejections(groups: Sequence[Group]) -> Figure:
    """How often each client was rejected."""
    all_rows = [(group, numbers.rejection_rows(group)) for group in groups]
    judged = [(group, rows) for group, rows in all_rows if rows]
    panels = tuple(_bars(rows, _title(group, groups)) for group, rows in judged[:MAX_PANELS])
    names = _truths(panels)
    caption = "One bar per client, most often rejected first: the share of rounds in which it was rejected."
    caption += " For malicious clients only rounds in which they attacked are counted." if names else ""
    caption += _left_out(judged)
    return Figure("rejections", "Who was rejected how often", caption, panels, 460, min(2, len(panels) or 1), names)


def _bars(every: list[Row], title: str) -> Panel:
    rows = every[:MAX_CLIENTS]
    few = len(rows) <= 20  # room for names below the bars
    names = alt.Scale(domain=[row["client"] for row in rows])
    angle = -90 if any(len(row["client"]) > 6 for row in rows) else 0  # a real federation's have 20 digits
    axis = alt.Axis(labels=few, ticks=few, labelAngle=angle, labelOverlap=True, labelLimit=160)
    x = alt.X("client:N", scale=names, axis=axis)
    tips = [tip("client:N"), tip("who:N", title="was"), tip("rejected:Q"), tip("rounds:Q"), tip("share:Q", ".1%")]
    y = share_axis("share", "share of rounds")
    bars = chart().mark_bar().encode(x=x, y=y, color=truth_color(rows), tooltip=tips)
    title += f" ({MAX_CLIENTS} most rejected of {len(every)} clients)" if len(every) > MAX_CLIENTS else ""
    description = f"Share of rounds in which each client was rejected, {title}; on average "
    return Panel(title, f"{description}{_averages(rows, 'share', 'rounds', '.1%')}.", rows, stack([bars], 200))


def confusion(groups: Sequence[Group]) -> Figure:
    """How many malicious and honest updates were rejected and accepted."""
    all_rows = [(group, numbers.confusion_rows(group)) for group in groups]
    judged = [(group, rows) for group, rows in all_rows if rows]
    panels = tuple(_fates(rows, _title(group, groups)) for group, rows in judged[:MAX_PANELS])
    caption = "Updates that a filter judged, counted once per round; percentages are of the row." + _left_out(judged)
    columns = sum(group.circumstances == groups[0].circumstances for group, _ in judged)  # one attack, one line
    title = "Malicious and honest updates, rejected and accepted"
    return Figure("confusion", title, caption, panels, 300, min(3, max(1, columns)))


def _fates(counts: list[Row], title: str) -> Panel:
    rows = [row | {"label": f"{row['count']:,} ({row['share']:.1%})"} for row in counts]
    truths = list(dict.fromkeys(row["truth"] for row in rows))
    x = alt.X("fate:N", title=None, scale=cells(["rejected", "accepted"]), axis=bare_axis(labelAngle=0))
    y = alt.Y("truth:N", title=None, scale=cells(truths), axis=bare_axis())
    tips = [tip("truth:N", title="was"), tip("fate:N", title="verdict"), tip("count:Q", ",d"), tip("share:Q", ".1%")]
    layers = heat(x, y, "share", alt.Text("label:N"), tips).properties(height=56 * len(truths))
    description = ", ".join(f"{row['truth']} and {row['fate']} {row['label']}" for row in rows)
    return Panel(title, f"What the filter did, {title}: {description}.", rows, layers)


def _split(groups: Sequence[Group]) -> Figure:
    rows, which = numbers.split_rows(groups)
    classes = list(dict.fromkeys(row["class"] for row in rows))
    gradient = alt.Legend(title="samples", orient="top", gradientLength=160, tickCount=3)
    squares = chart().encode(
        x=alt.X("client:O", title="client", axis=bare_axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("class:N", title="class", scale=alt.Scale(domain=classes), axis=bare_axis(labelOverlap=True)),
        color=alt.Color("samples:Q", scale=alt.Scale(range=list(HEAT), domainMin=0), legend=gradient),
        tooltip=[tip("client:O"), tip("class:N"), tip("samples:Q")],
    )
    description = f"Samples per client and class; {which}, {len(classes)} classes."
    panels = (
        (Panel(which, description, rows, stack([squares.mark_rect()], max(120, min(400, 22 * len(classes))))),)
        if rows
        else ()
    )
    return Figure("split", "How the data are split", "How many samples of each class each client holds.", panels)


def _left_out(everything: Sequence[object]) -> str:
    """A sentence for the caption where there is not room for all."""
    if len(everything) <= MAX_PANELS:
        return ""
    return f" The first {MAX_PANELS} of {len(everything)}; a report of a single run's folder shows its own."


def _title(group: Group, groups: Sequence[Group]) -> str:
    """The defense, and the experiment and the attack where there are several."""
    several = len({other.attack for other in groups}) > 1
    title = f"{group.defense} {under(group.attack)}".strip() if several else group.defense
    return f"{group.setting}, {title}" if group.setting else title


def _truths(panels: Sequence[Panel]) -> tuple[Entry, ...]:
    return truth_legend(row for panel in panels for row in panel.rows)


def _averages(rows: Sequence[Row], key: str, weight: str, form: str) -> str:
    totals = {who: sum(row[weight] for row in rows if row["who"] == who) for who in TRUTH}
    sums = {who: sum(row[key] * row[weight] for row in rows if row["who"] == who) for who in TRUTH}
    return ", ".join(f"{who} {sums[who] / total:{form}}" for who, total in totals.items() if total)
