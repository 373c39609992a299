"""Bars: figures 4 and 6 of the paper, and its claims. One number by a setting and a defense, with its range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import altair as alt

from ...report.chart_data import Row
from ...report.chart_elements import bare_axis, chart, legend, named_colors, share_axis, stack, tip
from ...report.figure import Entry, Figure, Panel
from ...report.groups import Group
from ...report.looks import list_looks
from ...report.theme import PALETTE
from .chart_data import share_rows
from .views import DEFENSES, Paper, parse_printed

BEHIND = "CosDefense + "  # in the label of an aggregator that gets what CosDefense accepts
MARKS = "Bars: mean over seeds. Lines: lowest to highest seed. Dots: single seeds."


def draw_bar_figures(paper: Paper) -> list[Figure]:
    """All of them; those without data have no panel."""
    return [_figure4(paper), _figure6(paper), _layers(paper), _aggregators(paper), _backdoors(paper)]


def list_entries(groups: Sequence[Group]) -> tuple[Entry, ...]:
    """The defenses in the paper's order, each in its own color."""
    names = list(dict.fromkeys(group.defense for group in groups))
    return list_looks([*(name for name in DEFENSES if name in names), *names])


def _figure4(paper: Paper) -> Figure:
    caption = "Figure 4 of the paper: final accuracy on MNIST when more or fewer of the clients attack."
    return _draw_varied("figure4", "Figure 4: how many attack", caption, paper.attackers, "share of attackers", ".0%")


def _figure6(paper: Paper) -> Figure:
    caption = "Figure 6 of the paper: final accuracy on MNIST when clients are more or less alike: q is the share of a "
    caption += "class that goes to its own group of clients; with ten groups, 0.1 is the same mix for everybody."
    title = "Figure 6: how different the clients are"
    return _draw_varied("figure6", title, caption, paper.skew, "q", ".3g")


def _draw_varied(
    name: str, title: str, caption: str, values: Sequence[tuple[float, Group]], what: str, form: str
) -> Figure:
    """Bars by a setting, nothing for a single one. The paper prints numbers for that of table 3 only."""
    rows = share_rows([(f"{value:{form}}", group) for value, group in values])
    for value, group in values:
        known = parse_printed("MNIST", group) if group.runs[0].experiment == "paper-mnist" else None
        labels = {"setting": f"{value:{form}}", "defense": group.defense, "kind": "paper"}
        rows += [labels | {"share": known}] if known is not None else []
    shown = rows if len({row["setting"] for row in rows}) > 1 else []
    names = list_entries([group for _, group in values])
    return _draw_bars(name, title, caption, shown, names, what, "final accuracy")


def _layers(paper: Paper) -> Figure:
    caption = "Observation 1 of the paper: CosDefense when it compares another layer, or all. On MNIST under attack."
    rows = [row | {"defense": "CosDefense"} for row in share_rows([(g.defense, g) for g in paper.layers])]
    title = "Observation 1: which layer is compared"
    return _draw_bars("claim-layers", title, caption, rows, list_looks(["CosDefense"]), "compared", "final accuracy")


def _aggregators(paper: Paper) -> Figure:
    caption = "“Compatible with any aggregation method”: final accuracy on MNIST under attack."
    names = (Entry("alone", PALETTE[6]), Entry("behind CosDefense", PALETTE[0]))
    rows = []
    for group in paper.aggregators:
        rule = group.defense.removeprefix(BEHIND)
        who = names[rule != group.defense].label
        rows += [row | {"defense": who} for row in share_rows([(rule, group)])]
    title = "CosDefense in front of other aggregators"
    return _draw_bars("claim-aggregators", title, caption, rows, names, "aggregator", "final accuracy")


def _backdoors(paper: Paper) -> Figure:
    caption = "Backdoors on MNIST: the share of images with the trigger that get the attackers' label at the end."
    rows = share_rows([(group.attack, group) for group in paper.backdoors], "attack_success")
    names = list_entries(paper.backdoors)
    return _draw_bars("claim-backdoors", "Backdoors", caption, rows, names, "attack", "attack success")


def _draw_bars(
    name: str, title: str, caption: str, rows: list[Row], looks: Sequence[Entry], what: str, measured: str
) -> Figure:
    """One group of bars for every setting, one bar in it for every defense."""
    names = tuple(replace(entry, dash=()) for entry in looks)
    marks = MARKS if any(row["kind"] == "seed" for row in rows) else "Bars: one seed."
    if any(row["kind"] == "paper" for row in rows):
        marks += " Diamonds: what the paper prints."
    if any(row.get("unfinished") for row in rows):
        marks += " Some runs are not finished: their accuracy so far."
    panels = (_draw_panel(rows, names, what, measured),) if rows else ()
    return Figure(name, title, caption, panels, legend=names, marks=marks)


def _draw_panel(rows: list[Row], names: Sequence[Entry], what: str, measured: str) -> Panel:
    domain = [entry.label for entry in names]
    x = alt.X("setting:N", title=what, sort=None, axis=bare_axis(labelAngle=0), scale=alt.Scale(paddingInner=0.25))
    beside = alt.XOffset("defense:N", scale=alt.Scale(domain=domain, paddingInner=0.08))
    marks = chart().encode(x=x, xOffset=beside)
    color = named_colors("defense", names, legend(names, symbolType="square"))
    means, single, printed = (marks.transform_filter(f"datum.kind === '{kind}'") for kind in ("mean", "seed", "paper"))
    y = share_axis("share", measured)
    tips = [tip("defense:N"), tip("setting:N", title=what), tip("share:Q", ".1%", measured)]
    more = [tip("low:Q", ".1%", "lowest"), tip("high:Q", ".1%", "highest"), tip("seeds:Q")]
    bars = means.mark_bar(fillOpacity=0.6).encode(y=y, color=color, tooltip=[*tips, *more])
    ranges = means.mark_rule(style="ink-rule").encode(y=share_axis("low", measured), y2="high:Q")
    dots = single.mark_point(style="ink-dot", filled=True, size=22).encode(y=y, tooltip=[*tips, tip("seed:N")])
    diamonds = printed.mark_point(shape="diamond", filled=True, size=90, stroke="white", strokeWidth=1, opacity=1)
    layers = [bars, ranges, dots]
    if any(row["kind"] == "paper" for row in rows):
        layers.append(diamonds.encode(y=y, color=alt.value("#000000"), tooltip=[*tips, tip("kind:N", title="from")]))
    ends = [f"{row['setting']} {row['defense']} {row['share']:.1%}" for row in rows if row["kind"] == "mean"]
    description = f"{measured.capitalize()} by {what} and defense: {', '.join(ends)}."
    return Panel("", description, rows, stack(layers, 300))
