"""The report of the reproduced paper: its numbers against the records, and whatever part of it was run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

pytest.importorskip("altair", reason='needs the extra "report"')
pytest.importorskip("vl_convert", reason='needs the extra "report"')

from cosdefense.report import Report
from cosdefense.report.figure import Figure
from cosdefense.report.table import tables_to_markdown
from cosdefense.runs.metrics import Detection
from cosdefense.runs.packed_records import compact, read_pack, write_pack
from cosdefense.runs.records import RoundRecord, RunRecord
from cosdefense.studies.paper.claims import Recovery, measure_recovery
from cosdefense.studies.paper.figures import draw_paper_figures
from cosdefense.studies.paper.page import render_paper_page
from cosdefense.studies.paper.report import write_paper_report
from cosdefense.studies.paper.tables import describe_paper, make_paper_tables
from cosdefense.studies.paper.views import COUNTED, select_paper_runs
from paper_runs import (
    DATASETS,
    DEFENSES,
    LAYERS,
    ROUNDS,
    START,
    STEPS,
    VARIED,
    drift_runs,
    experiments,
    make,
    paper_runs,
    runs_of,
)
from synthetic_runs import make_run

pytestmark = pytest.mark.slow  # renders pictures

Tables = dict[str, list[dict[str, str]]]


def read(markdown: str) -> Tables:
    """Every table of a markdown text: a dictionary per row, under the heading above it."""
    tables: Tables = {}
    for part in markdown.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
        tables[title] = [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
    return tables


def percent(values: list[float]) -> str:
    return f"{100 * fmean(values):.1f} ± {100 * stdev(values):.1f}%"


def picked(runs: list[RunRecord], name: str, attack: str, defense: str) -> list[RunRecord]:
    wanted = (name, attack, defense)
    return [run for run in runs if (run.experiment, run.header["attack"], run.label) == wanted]


def last(rounds: tuple[RoundRecord, ...], key: str = "accuracy") -> float:
    found: list[float] = [getattr(record, key) for record in rounds if getattr(record, key) is not None]
    return found[-1]


@pytest.fixture(scope="module")
def runs() -> list[RunRecord]:
    return paper_runs()


@pytest.fixture(scope="module")
def tables(runs: list[RunRecord]) -> Tables:
    return read(tables_to_markdown(make_paper_tables(select_paper_runs(runs, drift_runs())), "t"))


@pytest.fixture(scope="module")
def figures(runs: list[RunRecord]) -> dict[str, Figure]:
    return draw_paper_figures(select_paper_runs(runs, drift_runs()))


def test_table_3_stands_beside_the_papers(runs: list[RunRecord], tables: Tables) -> None:
    rows = tables["Table 3: ours beside the paper's"]
    named = {(row["Dataset"], row["Defense"]): row for row in rows}
    assert [row["Defense"] for row in rows[:5]] == list(DEFENSES)
    assert len(rows) == len(named) == 5 + 5 + 6 + 6
    printed = [named["Fashion-MNIST", defense]["Paper"] for defense in DEFENSES]
    assert printed == ["10%", "10%", "–", "21.24%", "67.63%"]
    for dataset, name, defense, key in (
        ("MNIST", "paper-mnist", "CosDefense", "accuracy"),
        ("CIFAR-10, running statistics", "paper-cifar-10", "Krum", "accuracy"),
        ("CIFAR-10, batch statistics", "paper-cifar-10", "Krum", "batch_statistics_accuracy"),
    ):
        same = picked(runs, name, "inner product", defense)
        row = named[dataset, defense]
        assert row["Final accuracy"] == percent([last(run.rounds, key) for run in same])
        tails = [[getattr(run.rounds[number], key) for number in (54, 59)] for run in same]
        assert row["Last 6 rounds"] == percent([fmean(tail) for tail in tails])
        assert row["Before the attack"] == percent([getattr(run.rounds[START - 1], key) for run in same])
        assert row["Seeds"] == "0, 1"
    counted = picked(runs, "paper-cifar-10-counters", "inner product", "Clipping-Median")
    row = named["CIFAR-10, running statistics", COUNTED]
    assert (row["Paper"], row["Final accuracy"]) == ("–", percent([last(run.rounds) for run in counted]))


def test_who_was_rejected_is_counted_by_the_metrics(runs: list[RunRecord], tables: Tables) -> None:
    rows = {(row["Dataset"], row["Defense"]): row for row in tables["Who was rejected"]}
    assert ("MNIST", "none") not in rows  # nobody judges there
    found = [Detection.of(run.rounds) for run in picked(runs, "paper-mnist", "inner product", "CosDefense")]
    clean = [Detection.of(run.rounds) for run in picked(runs, "paper-mnist", "none", "CosDefense")]
    row = rows["MNIST", "CosDefense"]
    assert row["Malicious rejected"] == percent([one.recall or 0.0 for one in found])
    assert row["Honest rejected"] == percent([one.false_positive_rate or 0.0 for one in found])
    assert row["Honest rejected in rounds without attackers"] == percent(
        [one.clean_false_positive_rate or 0.0 for one in found]
    )
    assert row["Honest rejected without the attack"] == percent([one.false_positive_rate or 0.0 for one in clean])


def test_the_cost_of_a_defense_is_taken_seed_by_seed(runs: list[RunRecord], tables: Tables) -> None:
    title = "Without any attack, and what a defense then costs"
    rows = {(row["Dataset"], row["Defense"]): row for row in tables[title]}
    plain, krum = ([last(run.rounds) for run in picked(runs, "paper-mnist", "none", name)] for name in ("none", "Krum"))
    costs = [100 * (ours - theirs) for ours, theirs in zip(plain, krum, strict=True)]
    assert rows["MNIST", "Krum"]["Final accuracy"] == percent(krum)
    assert rows["MNIST", "Krum"]["Cost, final"] == f"{fmean(costs):.1f} ± {stdev(costs):.1f}"
    assert rows["MNIST", "none"]["Cost, final"] == "–"
    uneven = [run for run in runs if (run.label, run.header["seed"]) != ("none", 1)]  # one seed in common
    with_one_seed = read(tables_to_markdown(make_paper_tables(select_paper_runs(uneven)), "t"))[title]
    assert next(row for row in with_one_seed if row["Defense"] == "Krum")["Cost, final"] == f"{costs[0]:.1f}"


@pytest.mark.parametrize(
    ("title", "column", "names"),
    [
        (
            "Figure 4 in numbers: how many attack",
            "Attackers",
            {
                "10%": "paper-attackers-10",
                "20%": "paper-attackers-20",
                "30%": "paper-mnist",
                "40%": "paper-attackers-40",
            },
        ),
        (
            "Figure 6 in numbers: how different the clients are",
            "q",
            {"0.1": "paper-skew-0.1", "0.3": "paper-skew-0.3", "0.5": "paper-mnist"},
        ),
    ],
)
def test_figures_4_and_6_take_their_middle_from_table_3(
    runs: list[RunRecord], tables: Tables, title: str, column: str, names: dict[str, str]
) -> None:
    rows = tables[title]
    assert [(row[column], row["Defense"]) for row in rows] == [(value, name) for value in names for name in VARIED]
    for row in rows:
        same = picked(runs, names[row[column]], "inner product", row["Defense"])
        assert row["Final accuracy"] == percent([last(run.rounds) for run in same])


def test_runs_of_another_size_are_not_put_into_the_same_figure(runs: list[RunRecord]) -> None:
    quick = [make("paper-attackers-10", "inner product", "Krum", 0, rounds=30)]
    paper = select_paper_runs([run for run in runs if run.experiment == "paper-mnist"] + quick)
    assert [value for value, _ in paper.attackers] == [0.1]
    assert "figure4" not in draw_paper_figures(paper)


def test_figure_1_goes_from_input_to_output(tables: Tables, figures: dict[str, Figure]) -> None:
    rows = tables["Figure 1 in numbers: clients without averaging"]
    assert [row["Layer"] for row in rows] == ["layer 1", "layer 2", "layer 3", "last layer"]
    assert [row["Tensor"] for row in rows] == list(LAYERS)
    panels = {panel.title: panel.rows for panel in figures["figure1"].panels}
    assert list(panels) == ["Weights", "Changes"]
    for what, drawn in panels.items():
        ends = [end for run in drift_runs() for end in getattr(run.measurements[-1], what.lower())["7.weight"]]
        assert len(ends) == 20
        assert rows[3][f"{what} after {ROUNDS * STEPS}"] == f"{fmean(ends):.3f}"
        assert [row["iteration"] for row in drawn if row["tensor"] == "0.weight"] == [
            STEPS * (number + 1) for number in range(ROUNDS)
        ]
        last = next(row for row in drawn if (row["tensor"], row["iteration"]) == ("7.weight", ROUNDS * STEPS))
        assert [last[key] for key in ("mean", "low", "high")] == pytest.approx(
            [fmean(ends), min(ends), max(ends)], abs=1e-6
        )


def test_figure_2_is_a_moving_average_over_the_rounds_so_far(
    runs: list[RunRecord], tables: Tables, figures: dict[str, Figure]
) -> None:
    attacked = picked(runs, "paper-scores", "inner product", "CosDefense")
    traces = [
        np.array([np.mean(np.array(record.scores["TracedCosDefense"], float)) for record in run.rounds])
        for run in attacked
    ]
    (panel,) = figures["figure2"].panels
    rows = [row for row in panel.rows if row["case"] == "Under inner product"]
    assert len(rows) == ROUNDS
    smooth = [np.convolve(trace, np.ones(40) / 40, "valid") for trace in traces]
    assert [row["mean"] for row in rows[39:]] == pytest.approx(np.mean(smooth, axis=0).tolist(), abs=1e-6)
    assert [row["high"] for row in rows[39:]] == pytest.approx(np.max(smooth, axis=0).tolist(), abs=1e-6)
    assert rows[0]["mean"] == pytest.approx(np.mean([trace[0] for trace in traces]), abs=1e-6)
    assert [{"round": START}] in panel.spec()["datasets"].values()
    row = tables["Figure 2 in numbers: mean scores"][1]
    after = [float(np.mean(trace[START:])) for trace in traces]
    assert row[f"From round {START} on"] == f"{fmean(after):.4f} ± {stdev(after):.4f}"


def test_a_defense_has_one_color_whoever_is_drawn_with_it(runs: list[RunRecord], figures: dict[str, Figure]) -> None:
    hues = {entry.label: entry.color for entry in figures["figure3"].legend}
    assert len(set(hues.values())) == len(hues) == 6
    some = [run for run in runs if run.label in ("Clipping-Median", "CosDefense")]
    for figure in (figures["figure4"], figures["figure6"], draw_paper_figures(select_paper_runs(some))["figure3"]):
        assert all(hues[entry.label] == entry.color for entry in figure.legend)


def test_bars_show_every_seed(runs: list[RunRecord], figures: dict[str, Figure]) -> None:
    (panel,) = figures["figure4"].panels
    same = [last(run.rounds) for run in picked(runs, "paper-attackers-20", "inner product", "Krum")]
    rows = [row for row in panel.rows if (row["setting"], row["defense"]) == ("20%", "Krum")]
    assert [row["kind"] for row in rows] == ["mean", "seed", "seed"]
    assert [row["share"] for row in rows] == pytest.approx([fmean(same), *same], abs=1e-5)
    assert (rows[0]["low"], rows[0]["high"]) == pytest.approx((min(same), max(same)), abs=1e-5)


def test_figures_show_what_the_paper_prints(runs: list[RunRecord], figures: dict[str, Figure]) -> None:
    printed = {"Krum": 0.098, "Clipping-Median": 0.1929, "CosDefense": 0.8337}
    for name, setting in (("figure4", "30%"), ("figure6", "0.5")):
        (panel,) = figures[name].panels
        rows = [row for row in panel.rows if row["kind"] == "paper"]
        assert {row["defense"]: row["share"] for row in rows} == printed
        assert {row["setting"] for row in rows} == {setting}
    assert "diamond" not in json.dumps(figures["figure3"].panels[0].spec())  # these runs are shorter than the paper's
    long = make("paper-mnist", "inner product", "CosDefense", 0, rounds=1000)
    figure = draw_paper_figures(select_paper_runs([long]))["figure3"]
    spec = figure.panels[0].spec()
    (diamonds,) = [layer for layer in spec["layer"] if layer["mark"].get("shape") == "diamond"]
    assert spec["datasets"][diamonds["data"]["name"]] == [{"defense": "CosDefense", "round": 999, "mean": 0.8337}]
    assert "the paper prints" in figure.marks


def test_pictures_explain_their_marks(figures: dict[str, Figure]) -> None:
    assert "lowest to highest seed" in figures["figure3"].marks
    assert "40 rounds" in figures["figure2"].marks
    for name in ("figure1", "figure2", "figure3", "figure4", "figure6"):
        assert figures[name].marks


def recovery_of(accuracies: list[float | None], start: int = 2) -> Recovery | None:
    rounds = tuple(RoundRecord(number, (), (), accuracy=value) for number, value in enumerate(accuracies))
    return measure_recovery(RunRecord({"experiment": {"schedule": {"attack_start": start}}}, rounds))


def test_recovery() -> None:
    assert recovery_of([0.5, 0.8, 0.3, None, 0.71, 0.72, 0.9, 0.5]) == Recovery(4, 3 / 5)  # 0.72 is 90 % of 0.8
    assert recovery_of([0.5, 0.8, 0.8, 0.75]) == Recovery(0, 0.0)
    assert recovery_of([0.5, 0.8, 0.75, 0.3, 0.7]) == Recovery(None, 2 / 3)
    assert recovery_of([None, None, 0.3]) is None  # nothing is known from before the attack
    assert recovery_of([0.5, 0.8]) is None


FIGURES = {  # experiment → the figures it has enough runs for
    "paper-mnist": {"figure3", "grid", "scores", "rejections", "confusion"},
    "paper-cifar-10-counters": {"figure3", "grid"},
    "paper-scores": {"figure2"},
    "paper-attackers-10": set(),
    "paper-skew-0.3": set(),
}


@pytest.mark.parametrize("name", FIGURES)
def test_what_was_not_run_is_left_out(name: str) -> None:
    runs = runs_of(name, seeds=(3,))
    paper = select_paper_runs(runs)
    tables, figures = make_paper_tables(paper), draw_paper_figures(paper)
    assert set(figures) == FIGURES[name]
    assert tables
    text = render_paper_page(runs, paper, tables, figures, "t")
    assert all(f'id="{shown}"' in text for shown in figures)
    assert f"{len(runs)} run{'s' if len(runs) > 1 else ''}, seed 3, on NVIDIA H200." in text


def test_figure_1_can_be_all_that_was_run(tmp_path: Path) -> None:
    report = write_paper_report([], tmp_path, "Again", drift_runs((3,)))
    assert [path.name for path in report.figures] == ["figure1.png"]
    assert "1 run, seed 3, on NVIDIA H200." in report.page.read_text(encoding="utf-8")


def test_unfinished_runs_are_shown_and_named() -> None:
    whole = make("paper-mnist", "inner product", "CosDefense", 0)
    begun = replace(make("paper-mnist", "inner product", "CosDefense", 1), summary=None)
    begun = replace(begun, rounds=begun.rounds[:30])
    empty = replace(make("paper-mnist", "none", "none", 0), rounds=(), summary=None)
    paper = select_paper_runs([whole, begun, empty])
    row = read(tables_to_markdown(make_paper_tables(paper), "t"))["Table 3: ours beside the paper's"][0]
    assert row["Seeds"] == "0, 1 (1 unfinished)"
    assert row["Final accuracy"] == percent([last(whole.rounds), last(begun.rounds)])
    assert "2 of them not finished" in describe_paper(paper)
    assert set(draw_paper_figures(paper)) >= {"figure3", "grid"}


def test_the_words_say_where_the_runs_fall_short_of_the_paper(runs: list[RunRecord]) -> None:
    text = describe_paper(select_paper_runs(runs))
    ends = [last(run.rounds) for run in picked(runs, "paper-mnist", "inner product", "CosDefense")]
    assert f"On MNIST, CosDefense ended at {percent(ends)} accuracy (the paper: 83.37%)." in text
    assert "60 rounds where the paper has 1,000" in text
    header = json.loads(json.dumps(make("paper-mnist", "none", "none", 0).header))
    header["experiment"]["training"]["rounds"] = 1000
    assert "where the paper has" not in describe_paper(select_paper_runs([RunRecord(header, (), None)]))


def test_two_sizes_of_one_experiment_stay_apart() -> None:
    pair = [make("paper-mnist", "inner product", "CosDefense", 0, rounds=rounds) for rounds in (40, 60)]
    rows = read(tables_to_markdown(make_paper_tables(select_paper_runs(pair)), "t"))["Table 3: ours beside the paper's"]
    assert [row["Dataset"] for row in rows] == [f"MNIST, training.rounds = {rounds}" for rounds in (40, 60)]
    assert [row["Paper"] for row in rows] == ["83.37%"] * 2
    assert "Last tenth" in rows[0]


def test_packed_records_give_the_same_tables(runs: list[RunRecord], tmp_path: Path) -> None:
    path = tmp_path / "pack.jsonl.gz"
    write_pack(path, [compact(run, whole_rounds=run.experiment == "paper-scores") for run in runs])
    small = list(read_pack(path))
    whole, less = select_paper_runs(runs), select_paper_runs(small)
    assert make_paper_tables(whole) == make_paper_tables(less)
    assert describe_paper(whole) == describe_paper(less)
    assert set(draw_paper_figures(whole)) - set(draw_paper_figures(less)) == {"scores", "rejections"}


def test_runs_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the runs repeats an experiment of the paper: synthetic"):
        select_paper_runs([make_run(rounds=2)])


def test_labels_cannot_break_a_table() -> None:
    label = "a | b\n<script>"
    run = make("paper-mnist", "inner product", "CosDefense", 0)
    run = replace(run, header={**run.header, "defense": label})
    text = tables_to_markdown(make_paper_tables(select_paper_runs([run])), "t")
    assert "a \\| b &lt;script&gt;" in text
    assert "<script>" not in text


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    few = [run for name in ("paper-scores", "paper-attackers-10", "paper-attackers-20") for run in runs_of(name)]
    return write_paper_report(few, tmp_path_factory.mktemp("paper") / "out", "Again", drift_runs())


def test_page_tables_and_pictures_lie_side_by_side(report: Report) -> None:
    names = ["figure2.png", "figure1.png", "figure4.png"]
    assert [path.name for path in report.figures] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in report.figures)
    assert report.tables is not None
    assert sorted(path.name for path in report.page.parent.iterdir()) == sorted([*names, "report.html", "tables.md"])
    titles = re.findall(r"^## (.*)$", report.tables.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [title.split(" in ")[0] for title in titles] == ["Figure 4", "Figure 1", "Figure 2"]


def test_the_page_is_well_formed(runs: list[RunRecord], figures: dict[str, Figure]) -> None:
    paper = select_paper_runs(runs, drift_runs())
    text = render_paper_page(runs, paper, make_paper_tables(paper), figures, "Again")
    assert text == render_paper_page(runs, paper, make_paper_tables(paper), figures, "Again")
    body = text[: text.index('<script type="application/json"')]
    levels = [int(level) for level in re.findall(r"<h([1-6])", body)]
    assert levels.count(1) == levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    names = re.findall(r'id="([^"]*)"', body)
    assert len(names) == len(set(names))
    assert {"table3", "detection", "clean", *figures} <= set(names)
    order = [body.index(f'id="{name}"') for name in ("table3", "detection", "clean", *figures, "data", "settings")]
    assert order == sorted(order)
    assert all(link.startswith("data:") for link in re.findall(r'(?:href|src)="([^"]*)"', body))
    for tag in ("section", "table", "tr", "th", "td", "details", "figure", "div", "tbody", "thead"):
        assert len(re.findall(rf"<{tag}[ >]", body)) == body.count(f"</{tag}>"), tag


def test_every_experiment_is_covered(runs: list[RunRecord], figures: dict[str, Figure]) -> None:
    names = ["figure3", "figure2", "figure1", "figure4", "figure6", "grid", "scores", "rejections", "confusion"]
    assert list(figures) == names
    assert {run.experiment for run in select_paper_runs(runs).runs} == set(experiments()) >= set(DATASETS)
    panels: dict[str, Any] = {panel.title: panel for panel in figures["grid"].panels}
    cells = {(row["dataset"], row["defense"]): row["share"] for row in panels["Final accuracy without an attack"].rows}
    same = [last(run.rounds) for run in picked(runs, "paper-fashion-mnist", "none", "Krum")]
    assert cells["Fashion-MNIST", "Krum"] == pytest.approx(fmean(same), abs=1e-5)


def test_claims_have_tables_and_figures() -> None:
    both = [("paper-aggregators", "median"), ("paper-aggregators", "CosDefense + median")]
    both += [("paper-layers", "first layer"), ("paper-layers", "last layer")]
    made = [(make(name, "inner product", "CosDefense", seed), label) for name, label in both for seed in (0, 1)]
    runs = [replace(run, header={**run.header, "defense": label}) for run, label in made]
    runs += [make("paper-backdoors", "backdoor", "CosDefense", seed) for seed in (0, 1)]
    runs = [
        replace(run, summary={**(run.summary or {}), "attack_success": 0.25 + 0.5 * run.header["seed"]}) for run in runs
    ]
    paper = select_paper_runs(runs)
    tables, figures = read(tables_to_markdown(make_paper_tables(paper), "t")), draw_paper_figures(paper)
    ends = percent([last(run.rounds) for run in picked(runs, "paper-layers", "inner product", "first layer")])
    assert tables["Observation 1: which layer is compared"][0]["Final accuracy"] == ends
    assert [row["Defense"] for row in tables["“Compatible with any aggregation method”"]] == [
        "median", "CosDefense + median",
    ]  # fmt: skip
    assert tables["Backdoors"][0]["Attack success"] == "50.0 ± 35.4%"
    rows = figures["claim-aggregators"].panels[0].rows
    assert {(row["setting"], row["defense"]) for row in rows} == {("median", "alone"), ("median", "behind CosDefense")}
    (bar,) = [row for row in figures["claim-backdoors"].panels[0].rows if row["kind"] == "mean"]
    assert (bar["share"], bar["low"], bar["high"]) == (0.5, 0.25, 0.75)
    assert {"claim-layers", "claim-aggregators", "claim-backdoors"} <= set(figures)


def test_claims_name_runs_that_are_not_finished() -> None:
    whole, begun = (make("paper-layers", "inner product", "CosDefense", seed) for seed in (0, 1))
    named = {}
    for runs in ([whole, begun], [whole, replace(begun, rounds=begun.rounds[:30], summary=None)], [whole]):
        paper = select_paper_runs(runs)
        row = read(tables_to_markdown(make_paper_tables(paper), "t"))["Observation 1: which layer is compared"][0]
        named[row["Seeds"]] = draw_paper_figures(paper)["claim-layers"].marks
    assert list(named) == ["0, 1", "0, 1 (1 unfinished)", "0"]
    assert "Some runs are not finished: their accuracy so far." in named["0, 1 (1 unfinished)"]
    assert "not finished" not in named["0, 1"]
    assert named["0"] == "Bars: one seed."
