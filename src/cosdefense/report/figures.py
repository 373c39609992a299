"""The figures of a report: six questions, each answered by one or more charts."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from ..records import RunRecord
from . import rows as numbers
from .figure import Entry, Figure, Panel
from .marks import (
    attack_start,
    bare_axis,
    cells,
    chart,
    heat,
    legend,
    round_axis,
    score_axis,
    share_axis,
    tip,
    truth_color,
    truth_legend,
)
from .rows import MAX_CLIENTS, Group, Row, under
from .theme import HEAT, TRUTH, colors, dashes


def figures_of(runs: Sequence[RunRecord]) -> list[Figure]:
    """Every figure that has data."""
    groups = numbers.grouped(runs)
    drawn = [_accuracy(groups), _grid(groups), _scores(groups), _rejections(groups), _confusion(groups), _split(runs)]
    return [figure for figure in drawn if figure.panels]


def _accuracy(groups: Sequence[Group]) -> Figure:
    defenses = list(dict.fromkeys(group.defense for group in groups))
    names = tuple(map(Entry, defenses, colors(len(defenses)), dashes(len(defenses))))
    attacks = list(dict.fromkeys(group.attack for group in groups))
    members = [[group for group in groups if group.attack == attack] for attack in attacks]
    panels = tuple(_curves(some, names) for some in members if any(map(numbers.accuracy_rows, some)))
    caption = "Accuracy on held-out data."
    caption += " Choose a name to see it alone." if len(names) > 1 else ""
    if any(row["seeds"] > 1 for panel in panels for row in panel.rows):
        caption += " Lines are the mean over seeds, bands reach from the lowest to the highest seed."
    layout = (640, 1) if len(panels) == 1 else (460, 2)
    return Figure("accuracy", "Accuracy over the rounds", caption, panels, *layout, names, pickable=len(names) > 1)


def _curves(groups: Sequence[Group], names: Sequence[Entry]) -> Panel:
    """Accuracy under one attack, a color for each defense."""
    rows = [row for group in groups for row in numbers.accuracy_rows(group)]
    key = legend(names, symbolType="stroke", symbolStrokeWidth=3, symbolSize=200)
    domain, hues, patterns = zip(*((entry.label, entry.color, list(entry.dash)) for entry in names), strict=True)
    color = alt.Color("defense:N", scale=alt.Scale(domain=domain, range=hues), legend=key)
    dash = alt.StrokeDash("defense:N", scale=alt.Scale(domain=domain, range=patterns), legend=key)
    picked = alt.param("picked", value=None)
    faded = alt.when("!picked || datum.defense === picked").then(alt.value(1)).otherwise(alt.value(0.12))
    marks = chart().encode(x=round_axis(), y=share_axis("mean", "test accuracy"), color=color, opacity=faded)
    line = marks.mark_line(strokeWidth=2.25, strokeJoin="round").encode(strokeDash=dash)
    tips = [tip("defense:N"), tip("round:Q"), tip("mean:Q", ".1%", "accuracy"), tip("seeds:Q")]
    touch = marks.mark_point(size=80, filled=True).encode(opacity=alt.value(0), tooltip=tips)
    layers = [line, touch, *attack_start(groups, rows)]
    if any(row["seeds"] > 1 for row in rows):
        layers.insert(0, marks.mark_area(fillOpacity=0.18).encode(y=share_axis("low", "test accuracy"), y2="high:Q"))
    ends = ", ".join(f"{row['defense']} {row['mean']:.1%}" for row in {row["defense"]: row for row in rows}.values())
    title = under(groups[0].attack)
    said = f"Accuracy over the rounds, {title or 'all runs'}; at the end: {ends}."
    return Panel(title, said, rows, _stacked(layers, 320).add_params(picked))


def _grid(groups: Sequence[Group]) -> Figure:
    rows = numbers.grid_rows(groups)
    attacks, defenses = (list(dict.fromkeys(row[key] for row in rows)) for key in ("attack", "defense"))
    x = alt.X("attack:N", title=None, scale=cells(attacks), axis=bare_axis(labelAngle=-35))
    y = alt.Y("defense:N", title=None, scale=cells(defenses), axis=bare_axis())
    tips = [tip("defense:N"), tip("attack:N"), tip("accuracy:Q", ".1%")]
    drawn = heat(x, y, "accuracy", alt.Text("accuracy:Q", format=".1%"), tips).properties(height=36 * len(defenses))
    said = "; ".join(f"{row['defense']} {under(row['attack'])} {row['accuracy']:.1%}" for row in rows)
    panels = (Panel("", f"Final accuracy of every defense under every attack: {said}.", rows, drawn),) if rows else ()
    caption = "Accuracy in the last evaluated round, the mean over seeds."
    return Figure("grid", "Final accuracy by defense and attack", caption, panels, max(420, 90 * len(attacks)))


def _scores(groups: Sequence[Group]) -> Figure:
    panels = tuple(_score_bands(group, name, _title(group, groups)) for group in groups for name in group.filters)
    names = _truths(panels)
    title = "Scores of honest and malicious clients" if names else "Scores of the clients"
    caption = "What each filter thought of the clients. Lines are means, bands hold the middle 80% of the scores."
    return Figure("scores", title, caption, panels, 460, min(2, len(panels) or 1), names)


def _score_bands(group: Group, filter_name: str, title: str) -> Panel:
    rows = numbers.score_rows(group, filter_name)
    low, mean = (score_axis(key, rows) for key in ("low", "mean"))
    marks = chart().encode(x=round_axis(), color=truth_color(rows))
    band = marks.mark_area(opacity=0.2).encode(y=low, y2="high:Q")
    tips = [tip("who:N", title="clients"), tip("round:Q"), tip("mean:Q", ".3~g", "mean score"), tip("count:Q")]
    line = marks.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=26)).encode(y=mean, tooltip=tips)
    title += "" if filter_name == group.defense else f": {filter_name}"
    said = f"Scores over the rounds, {title}; on average {_averages(rows, 'mean', 'count', '.3g')}."
    return Panel(title, said, rows, _stacked([band, line, *attack_start([group], rows)], 220))


def _rejections(groups: Sequence[Group]) -> Figure:
    judged = [(group, numbers.rejection_rows(group)) for group in groups]
    panels = tuple(_bars(rows, _title(group, groups)) for group, rows in judged if rows)
    names = _truths(panels)
    caption = "One bar per client, most often rejected first: the share of rounds in which it was rejected."
    caption += " For malicious clients only rounds in which they attacked are counted." if names else ""
    return Figure("rejections", "Who was rejected how often", caption, panels, 460, min(2, len(panels) or 1), names)


def _bars(every: list[Row], title: str) -> Panel:
    rows = every[:MAX_CLIENTS]
    few = len(rows) <= 20  # room for names below the bars
    names = alt.Scale(domain=[row["client"] for row in rows])
    x = alt.X("client:N", scale=names, axis=alt.Axis(labels=few, ticks=few, labelAngle=0, labelOverlap=True))
    tips = [tip("client:N"), tip("who:N", title="was"), tip("rejected:Q"), tip("rounds:Q"), tip("share:Q", ".1%")]
    y = share_axis("share", "share of rounds")
    bars = chart().mark_bar().encode(x=x, y=y, color=truth_color(rows), tooltip=tips)
    title += f" ({MAX_CLIENTS} most rejected of {len(every)} clients)" if len(every) > MAX_CLIENTS else ""
    said = f"Share of rounds in which each client was rejected, {title}; on average "
    return Panel(title, f"{said}{_averages(rows, 'share', 'rounds', '.1%')}.", rows, _stacked([bars], 200))


def _confusion(groups: Sequence[Group]) -> Figure:
    judged = [(group, numbers.confusion_rows(group)) for group in groups]
    panels = tuple(_fates(rows, _title(group, groups)) for group, rows in judged if rows)
    caption = "Updates that a filter judged, counted once per round; percentages are of the row."
    columns = sum(bool(rows) for group, rows in judged if group.attack == groups[0].attack)  # one attack, one line
    title = "What became of malicious and honest updates"
    return Figure("confusion", title, caption, panels, 300, min(3, max(1, columns)))


def _fates(counted: list[Row], title: str) -> Panel:
    rows = [row | {"label": f"{row['count']:,} ({row['share']:.1%})"} for row in counted]
    truths = list(dict.fromkeys(row["truth"] for row in rows))
    x = alt.X("fate:N", title=None, scale=cells(["rejected", "accepted"]), axis=bare_axis(labelAngle=0))
    y = alt.Y("truth:N", title=None, scale=cells(truths), axis=bare_axis())
    tips = [tip("truth:N", title="was"), tip("fate:N", title="was found"), tip("count:Q", ",d"), tip("share:Q", ".1%")]
    drawn = heat(x, y, "share", alt.Text("label:N"), tips).properties(height=56 * len(truths))
    said = ", ".join(f"{row['truth']} and {row['fate']} {row['label']}" for row in rows)
    return Panel(title, f"What the filter did, {title}: {said}.", rows, drawn)


def _split(runs: Sequence[RunRecord]) -> Figure:
    rows, which = numbers.split_rows(runs)
    classes = list(dict.fromkeys(row["class"] for row in rows))
    gradient = alt.Legend(title="samples", orient="top", gradientLength=160, tickCount=3)
    drawn = chart().encode(
        x=alt.X("client:O", title="client", axis=bare_axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("class:N", title="class", scale=alt.Scale(domain=classes), axis=bare_axis(labelOverlap=True)),
        color=alt.Color("samples:Q", scale=alt.Scale(range=list(HEAT), domainMin=0), legend=gradient),
        tooltip=[tip("client:O"), tip("class:N"), tip("samples:Q")],
    )
    said = f"Samples per client and class; {which}, {len(classes)} classes."
    panels = (
        (Panel(which, said, rows, _stacked([drawn.mark_rect()], max(120, min(400, 22 * len(classes))))),)
        if rows
        else ()
    )
    return Figure("split", "How the data are split", "How many samples of each class each client holds.", panels)


def _title(group: Group, groups: Sequence[Group]) -> str:
    """The defense, and the attack where there are several."""
    several = len({other.attack for other in groups}) > 1
    return f"{group.defense} {under(group.attack)}".strip() if several else group.defense


def _truths(panels: Sequence[Panel]) -> tuple[Entry, ...]:
    return truth_legend(row for panel in panels for row in panel.rows)


def _averages(rows: Sequence[Row], key: str, weight: str, form: str) -> str:
    totals = {who: sum(row[weight] for row in rows if row["who"] == who) for who in TRUTH}
    sums = {who: sum(row[key] * row[weight] for row in rows if row["who"] == who) for who in TRUTH}
    return ", ".join(f"{who} {sums[who] / total:{form}}" for who, total in totals.items() if total)


def _stacked(layers: Sequence[alt.Chart], height: int) -> alt.LayerChart:
    return alt.LayerChart(layer=list(layers)).properties(height=height)
