"""The paper's figures, drawn from our runs: 3, 2, 1, 4 and 6, then heat maps and what the filters did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import altair as alt

from ...report.chart_data import Row, accuracy_rows
from ...report.chart_elements import (
    attack_start,
    bare_axis,
    chart,
    legend,
    named_colors,
    round_axis,
    share_axis,
    stack,
    tip,
)
from ...report.curves import curves, lines, pickable
from ...report.figure import Entry, Figure, Panel
from ...report.figures import confusion, rejections, scores
from ...report.groups import Group, under
from ...report.heatmaps import heat_map
from ...report.theme import DASHES, PALETTE, TRUTH, colors, dashes
from .chart_data import WINDOW, layer_rows, share_rows, trace_rows
from .tables import case
from .views import DEFENSES, Paper, View, views

# A defense has the same color in every figure; patterns where lines lie on each other.
HUES = ("#888888", "#D55E00", "#E69F00", "#009E73", "#56B4E9", "#0072B2")
PATTERNS = ((1, 0), (6, 3), (2, 2), (1, 0), (6, 3), (1, 0))
LOOKS = {entry.label: entry for entry in map(Entry, DEFENSES, HUES, PATTERNS)}
OTHERS = PALETTE[3]  # defenses that the paper does not know, distinguished by their patterns


def draw_paper_figures(paper: Paper) -> dict[str, Figure]:
    """Every figure that has data, by name."""
    rejecting = [g for g in paper.attacked if g.detection.malicious_rejected or g.detection.honest_rejected]
    figures = [_figure3(paper), _figure2(paper), _figure1(paper), _figure4(paper), _figure6(paper), _heat_maps(paper)]
    figures += [scores(rejecting), _rejections(rejecting), confusion(rejecting)]
    return {figure.name: figure for figure in figures if figure.panels}


def list_entries(groups: Sequence[Group]) -> tuple[Entry, ...]:
    """The defenses in the paper's order, each in its own color."""
    names = list(dict.fromkeys(group.defense for group in groups))
    others = [name for name in names if name not in LOOKS]
    looks = LOOKS | {name: Entry(name, OTHERS, DASHES[index % len(DASHES)]) for index, name in enumerate(others)}
    return tuple(entry for name, entry in looks.items() if name in names)


def _figure3(paper: Paper) -> Figure:
    shown = [view for view in views(paper.attacked) if any(accuracy_rows(group, view.key) for group in view.groups)]
    names = list_entries([group for view in shown for group in view.groups])
    panels = tuple(
        curves([g for g in view.groups if accuracy_rows(g, view.key)], names, view.title, view.key) for view in shown
    )
    caption = "Figure 3 of the paper: accuracy on held-out data under attack. Choose a name to see it alone. "
    caption += "Lines are the mean over seeds, bands reach from the lowest to the highest seed."
    layout = (640, 1) if len(panels) == 1 else (460, 2)
    title = "Figure 3: accuracy under attack"
    return Figure("figure3", title, caption, panels, *layout, names, pickable=len(names) > 1)


def _figure2(paper: Paper) -> Figure:
    rows = [row for group in paper.scores for row in trace_rows(group, case(group))]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    hues = [TRUTH["honest"], TRUTH["malicious"], *PALETTE[2:]] if len(cases) <= 2 else colors(len(cases))
    names = tuple(map(Entry, cases, hues[: len(cases)], dashes(len(cases))))
    caption = "Figure 2 of the paper: |cos| between the last layer of the global model and that of an update, the mean "
    caption += f"over all updates received, then over the {WINDOW} rounds up to each. "
    caption += "Lines are the mean over seeds, bands reach from the lowest to the highest."
    panels = (_trace(paper, rows, names),) if rows else ()
    return Figure("figure2", "Figure 2: the attack shows in the scores", caption, panels, legend=names, pickable=True)


def _trace(paper: Paper, rows: list[Row], names: Sequence[Entry]) -> Panel:
    tips = [tip("case:N"), tip("round:Q"), tip("mean:Q", ".4f", "mean |cos|"), tip("seeds:Q")]
    layers = lines(rows, "case", names, round_axis(), lambda key: alt.Y(f"{key}:Q", title="mean |cos|"), tips)
    ends = ", ".join(f"{row['case']} {row['mean']:.3f}" for row in {row["case"]: row for row in rows}.values())
    description = f"Mean scores of all received updates over the rounds; at the end: {ends}."
    return Panel("", description, rows, pickable([*layers, *attack_start(paper.scores, rows)], 300))


def _figure1(paper: Paper) -> Figure:
    rows = layer_rows(paper.drift)
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    names = tuple(map(Entry, layers, colors(len(layers)), dashes(len(layers))))
    caption = (
        "Figure 1 of the paper: clients train without averaging, each on its own data. How similar are their layers? "
    )
    caption += "The mean cosine similarity with the other clients; bands reach from the lowest to the highest. Weights "
    caption += "share the start that all clients got; how they changed since is what a server would receive."
    parts = {what: [row for row in rows if row["of"] == what] for what in dict.fromkeys(row["of"] for row in rows)}
    panels = tuple(_similarity(part, names, what) for what, part in parts.items())
    return Figure(
        "figure1", "Figure 1: clients that train without averaging", caption, panels, 460, 2, names, pickable=True
    )


def _similarity(rows: list[Row], names: Sequence[Entry], what: str) -> Panel:
    tips = [tip("layer:N"), tip("tensor:N"), tip("iteration:Q"), tip("mean:Q", ".3f", "similarity")]
    tips += [tip("low:Q", ".3f", "lowest"), tip("high:Q", ".3f", "highest")]
    axis = round_axis("iteration")
    scale = alt.Scale(zero=False)  # the weights' cosines all lie close to one

    def height(key: str) -> alt.Y:
        return alt.Y(f"{key}:Q", title="cosine similarity", scale=scale)

    layers = lines(rows, "layer", names, axis, height, tips)
    ends = ", ".join(f"{row['layer']} {row['mean']:.3f}" for row in {row["layer"]: row for row in rows}.values())
    description = (
        f"Cosine similarity of the {what} of clients that train without averaging, by layer; at the end: {ends}."
    )
    return Panel(what.capitalize(), description, rows, pickable(layers, 300))


def _figure4(paper: Paper) -> Figure:
    caption = "Figure 4 of the paper: final accuracy on MNIST when more or fewer of the clients attack."
    return _draw_bars("figure4", "Figure 4: how many attack", caption, paper.attackers, "share of attackers", ".0%")


def _figure6(paper: Paper) -> Figure:
    caption = "Figure 6 of the paper: final accuracy on MNIST when clients are more or less alike: q is the share of a "
    caption += "class that goes to its own group of clients; with ten groups, 0.1 is the same mix for everybody."
    title = "Figure 6: how different the clients are"
    return _draw_bars("figure6", title, caption, paper.skew, "q", ".3g")


def _draw_bars(
    name: str, title: str, caption: str, values: Sequence[tuple[float, Group]], what: str, form: str
) -> Figure:
    rows = share_rows(values, form)
    names = tuple(replace(entry, dash=()) for entry in list_entries([group for _, group in values]))
    if any(row["kind"] == "seed" for row in rows):
        caption += " Bars are the mean over seeds, whiskers its standard deviation, dots single seeds."
    panels = (_bars(rows, names, what),) if len({row["setting"] for row in rows}) > 1 else ()
    return Figure(name, title, caption, panels, legend=names)


def _bars(rows: list[Row], names: Sequence[Entry], what: str) -> Panel:
    domain = [entry.label for entry in names]
    x = alt.X("setting:N", title=what, sort=None, axis=bare_axis(labelAngle=0), scale=alt.Scale(paddingInner=0.25))
    beside = alt.XOffset("defense:N", scale=alt.Scale(domain=domain, paddingInner=0.08))
    marks = chart().encode(x=x, xOffset=beside)
    color = named_colors("defense", names, legend(names, symbolType="square"))
    means, single = (marks.transform_filter(f"datum.kind === '{kind}'") for kind in ("mean", "seed"))
    tips = [tip("defense:N"), tip("setting:N", title=what), tip("accuracy:Q", ".1%")]
    more = [tip("deviation:Q", ".1%"), tip("seeds:Q")]
    bars = means.mark_bar(fillOpacity=0.6).encode(
        y=share_axis("accuracy", "final accuracy"), color=color, tooltip=[*tips, *more]
    )
    whiskers = means.mark_rule(style="ink-rule").encode(y=share_axis("low", "final accuracy"), y2="high:Q")
    dots = single.mark_point(style="ink-dot", filled=True, size=22)
    dots = dots.encode(y=share_axis("accuracy", "final accuracy"), tooltip=[*tips, tip("seed:N")])
    ends = [f"{row['setting']} {row['defense']} {row['accuracy']:.1%}" for row in rows if row["kind"] == "mean"]
    description = f"Final accuracy by {what} and defense: {', '.join(ends)}."
    return Panel("", description, rows, stack([bars, whiskers, dots], 300))


def _rejections(groups: Sequence[Group]) -> Figure:
    """Of one seed each: with another, the clients are others, and five hundred bars say no more than a hundred."""
    figure = rejections([replace(group, runs=group.runs[:1]) for group in groups])
    return replace(figure, caption=f"{figure.caption} One seed of each.")


def _heat_maps(paper: Paper) -> Figure:
    """Dataset × defense: how it ended, and who was rejected."""
    attacked, clean = views(paper.attacked), views(paper.clean)
    attack = " or ".join(dict.fromkeys(under(group.attack) for group in paper.attacked))
    tested_once = [view for view in attacked if view.key == "accuracy"]
    panel_rows = [
        (f"Final accuracy {attack}", _cells(attacked, None)),
        ("Final accuracy without an attack", _cells(clean, None)),
        (f"Malicious updates rejected {attack}", _cells(tested_once, "malicious_rejected")),
        (f"Honest updates rejected {attack}", _cells(tested_once, "honest_rejected")),
    ]
    panels = tuple(_heat_map(title, rows) for title, rows in panel_rows if rows)
    caption = "Every cell is the mean over seeds."
    return Figure("grid", "Every defense on every dataset", caption, panels, 360, min(2, len(panels) or 1))


def _cells(shown: Sequence[View], key: str | None) -> list[Row]:
    """One number of the summaries; without a key the final accuracy, whichever way it was tested."""
    rows = []
    for view in shown:
        for group in view.groups:
            values = [summary.get(key or view.final) for summary in group.summaries]
            known = [value for value in values if value is not None]
            title = view.dataset if key else view.title
            row = {"dataset": title, "defense": group.defense}
            rows += [row | {"share": round(fmean(known), 5)}] if known else []
    return rows


def _heat_map(title: str, rows: list[Row]) -> Panel:
    description = "; ".join(f"{row['defense']} on {row['dataset']} {row['share']:.1%}" for row in rows)
    return heat_map(title, f"{title}: {description}.", rows, "dataset", DEFENSES)
