"""The paper's figures, drawn from our runs: 3, 2, 1, then bars, heat maps and what the filters did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import altair as alt

from ...report.chart_data import Row, accuracy_rows
from ...report.chart_elements import attack_start, named_colors, round_axis, share_axis, tip
from ...report.curves import curves, explain_bands, lines, pickable
from ...report.figure import Entry, Figure, Panel
from ...report.figures import confusion, rejections, scores
from ...report.groups import Group, under
from ...report.heatmaps import HUES, heat_map
from ...report.theme import PALETTE, TRUTH, colors, dashes
from .bars import draw_bar_figures, list_entries
from .chart_data import WINDOW, layer_rows, trace_rows
from .tables import case
from .views import DEFENSES, ROUNDS, Paper, View, parse_printed, views

HONEST_REJECTED = "Honest updates rejected"  # how the title of its heat map begins


def draw_paper_figures(paper: Paper) -> dict[str, Figure]:
    """Every figure that has data, by name."""
    rejecting = [g for g in paper.attacked if g.detection.malicious_rejected or g.detection.honest_rejected]
    figures = [_figure3(paper), _figure2(paper), _figure1(paper), *draw_bar_figures(paper), _heat_maps(paper)]
    figures += [scores(rejecting), _rejections(rejecting), confusion(rejecting)]
    return {figure.name: figure for figure in figures if figure.panels}


def _figure3(paper: Paper) -> Figure:
    shown = [view for view in views(paper.attacked) if any(accuracy_rows(group, view.key) for group in view.groups)]
    names = list_entries([group for view in shown for group in view.groups])
    printed = [_printed_marks(view, names) for view in shown]
    panels = tuple(
        curves([g for g in view.groups if accuracy_rows(g, view.key)], names, view.title, view.key, marks)
        for view, marks in zip(shown, printed, strict=True)
    )
    caption = "Figure 3 of the paper: accuracy on held-out data under attack. Choose a name to see it alone."
    marks = explain_bands(panels) + (" Diamonds: final accuracy that the paper prints." if any(printed) else "")
    layout = (640, 1) if len(panels) == 1 else (460, 2)
    title = "Figure 3: accuracy under attack"
    return Figure("figure3", title, caption, panels, *layout, names, marks.strip(), len(names) > 1)


def _printed_marks(view: View, names: Sequence[Entry]) -> list[alt.Chart]:
    """The paper's final accuracies, where the runs are as long as the paper's."""
    groups = [group for group in view.groups if group.rounds and group.rounds[-1].round == ROUNDS - 1]
    known = [(group.defense, parse_printed(view.dataset, group)) for group in groups]
    values = [{"defense": name, "round": ROUNDS - 1, "mean": share} for name, share in known if share is not None]
    if not values:
        return []
    marks = alt.Chart(alt.InlineData(values=values)).mark_point(
        shape="diamond", filled=True, size=110, opacity=1, stroke="white", strokeWidth=1
    )
    tips = [tip("defense:N"), tip("mean:Q", ".2%", "printed in the paper")]
    color = named_colors("defense", names, None)
    return [marks.encode(x="round:Q", y=share_axis("mean", "test accuracy"), color=color, tooltip=tips)]


def _figure2(paper: Paper) -> Figure:
    rows = [row for group in paper.scores for row in trace_rows(group, case(group))]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    hues = [TRUTH["honest"], TRUTH["malicious"], *PALETTE[2:]] if len(cases) <= 2 else colors(len(cases))
    names = tuple(map(Entry, cases, hues[: len(cases)], dashes(len(cases))))
    caption = "Figure 2 of the paper: |cos| between the last layer of the global model and that of an update, the mean "
    caption += "over all updates received."
    marks = f"Lines: moving average over the last {WINDOW} rounds, mean over seeds. Bands: lowest to highest seed."
    panels = (_trace(paper, rows, names),) if rows else ()
    title = "Figure 2: the attack shows in the scores"
    return Figure("figure2", title, caption, panels, legend=names, marks=marks, pickable=True)


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
    caption += "Weights share the start that all clients got; how they changed since is what a server would receive."
    parts = {what: [row for row in rows if row["of"] == what] for what in dict.fromkeys(row["of"] for row in rows)}
    panels = tuple(_similarity(part, names, what) for what, part in parts.items())
    marks = (
        "Lines: mean cosine similarity with the other clients, over clients and seeds. Bands: lowest to highest client."
    )
    title = "Figure 1: clients that train without averaging"
    return Figure("figure1", title, caption, panels, 460, 2, names, marks, pickable=True)


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
        (f"{HONEST_REJECTED} {attack}", _cells(tested_once, "honest_rejected")),
    ]
    panels = tuple(_heat_map(title, rows) for title, rows in panel_rows if rows)
    caption, columns = "Every cell is the mean over seeds.", min(2, len(panels) or 1)
    return Figure("grid", "Every defense on every dataset", caption, panels, 360, columns, marks=HUES, own_colors=True)


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
    is_bad = title.startswith(HONEST_REJECTED)
    return heat_map(title, f"{title}: {description}.", rows, "dataset", DEFENSES, is_bad=is_bad)
