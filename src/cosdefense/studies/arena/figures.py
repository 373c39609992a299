"""The arena as heat maps, defenses down and attacks across, and the accuracy of few defenses over the rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from ...report.chart_data import Row, accuracy_rows
from ...report.chart_elements import bare_axis, cells, heat, share_axis, tip
from ...report.curves import curves, explain_bands
from ...report.figure import Figure, Panel
from ...report.groups import under
from ...report.looks import list_looks
from ...report.theme import HARM
from .defense_results import INFORMED, DefenseResult, Setting
from .tables import SIDES

WORST = "worst case"  # the column beside those of the attacks
CELL_WIDTH, CELL_HEIGHT = 42, 26  # pixels: room for -0.1 and 81.0
CLEAN = "end of plain averaging without an attack"  # the mean of the last tenth
MAX_LINES, MAX_PANELS = 7, 8  # of curves: more cannot be distinguished


def draw_arena_figures(settings: Sequence[Setting]) -> dict[str, Figure]:
    """Heat maps of every setting that has something to be measured by, and curves where they can be read."""
    measured = [setting for setting in settings if setting.clean]
    figures = [_draw_figure(setting) for setting in measured]
    figures += [figure for setting in settings for figure in _draw_curves(setting)]
    return {figure.name: figure for figure in figures}


def _draw_figure(setting: Setting) -> Figure:
    attacks = _sort_attacks(setting)
    sides = [(SIDES[oracle], setting.results_with(oracle)) for oracle in SIDES]
    panels = tuple(_draw_heat_map(setting, title, results, attacks) for title, results in sides if results)
    marks = (
        "Points of accuracy lost against plain averaging without an attack on the same seeds: the deeper the color, "
        "the more is lost. "
    )
    marks += (
        "Mean over seeds, last tenth of the rounds. The best worst case stands first; attacks that know the defense "
    )
    marks += "stand last, and count."
    width = CELL_WIDTH * (1 + len(attacks))
    caption = f"Plain averaging without an attack reaches {setting.clean:.1%}."
    return Figure(
        f"arena-{setting.name}", f"{setting.title}: points lost", caption, panels, max(420, width), marks=marks,
        scale=1.5,
    )  # fmt: skip


def _sort_attacks(setting: Setting) -> list[str]:
    """In the order of the runs, those that know the defense last."""
    informed = {attack for result in setting.results for name in INFORMED for attack in result.attacks_named(name)}
    return sorted(setting.attacks, key=lambda attack: attack in informed)


def _draw_heat_map(setting: Setting, title: str, results: Sequence[DefenseResult], attacks: Sequence[str]) -> Panel:
    rows = [row for result in results for row in _make_rows(result)]
    axis = bare_axis(labelAngle=-45, labelLimit=220, orient="top", labelFontSize=11)
    x = alt.X("attack:N", title=None, scale=cells([WORST, *attacks]), axis=axis)
    names = [result.defense for result in results]
    y = alt.Y("defense:N", title=None, scale=cells(names), axis=bare_axis(labelLimit=170))
    tips = [tip("defense:N"), tip("attack:N"), tip("accuracy:Q", ".1%"), tip("lost:Q", ".1f", "points lost")]
    top = round(100 * (setting.clean or 1.0), 1)
    length = max(100, min(140, CELL_HEIGHT * len(names)))
    legend = alt.Legend(title="points lost", orient="right", gradientLength=length, values=[*range(0, int(top), 20)])
    text = alt.Text("lost:Q", format=".1f")
    chart = heat(x, y, "lost", text, tips, legend, top=top, colors=HARM).properties(height=CELL_HEIGHT * len(names))
    worst = "; ".join(f"{row['defense']} {row['lost']:.1f}" for row in rows if row["attack"] == WORST)
    description = f"{setting.title}, points lost in the worst case, {title.lower()}: {worst}."
    return Panel(title, description, rows, chart, min_width=170 + CELL_WIDTH * (1 + len(attacks)))


def _make_rows(result: DefenseResult) -> list[Row]:
    worst = [(WORST, result.worst[0])] if result.worst else []
    return [
        {
            "defense": result.defense,
            "attack": shown,
            "accuracy": round(result.accuracies[attack], 5),
            "lost": result.lost(attack),
        }
        for shown, attack in [*worst, *((attack, attack) for attack in result.accuracies)]
    ]


def _draw_curves(setting: Setting) -> Iterator[Figure]:
    """Accuracy over the rounds, a panel per attack, where there are few of both and the evaluations are there."""
    names = list_looks(result.defense for result in setting.results)
    attacks = _sort_attacks(setting)
    if len(names) > MAX_LINES or len(attacks) > MAX_PANELS:
        return
    panels = []
    for attack in attacks:
        groups = [result.groups[attack] for result in setting.results if attack in result.groups]
        if any(len(accuracy_rows(group)) > 1 for group in groups):
            panels.append(curves(groups, names, under(attack), others=_draw_clean(setting)))
    if panels:
        layout = (640, 1) if len(panels) == 1 else (460, 2)
        title, caption = f"{setting.title}: accuracy over the rounds", "Accuracy on held-out data."
        marks = explain_bands(panels) + (f" Level dashed line: {CLEAN}." if setting.clean else "")
        yield Figure(
            f"curves-{setting.name}", title, caption, tuple(panels), *layout, names, marks, len(names) > 1,
        )  # fmt: skip


def _draw_clean(setting: Setting) -> list[alt.Chart]:
    """A rule at what plain averaging without an attack reaches: in every panel, to compare with."""
    if setting.clean is None:
        return []
    mark = alt.Chart(alt.InlineData(values=[{"mean": round(setting.clean, 5)}])).mark_rule(style="guide-rule")
    return [mark.encode(y=share_axis("mean", "test accuracy"), tooltip=tip("mean:Q", ".1%", CLEAN))]
