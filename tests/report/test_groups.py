"""Runs are samples of the same thing only if nothing but their seed differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair", reason='needs the extra "report"')
pytest.importorskip("vl_convert", reason='needs the extra "report"')

from cosdefense.report.figures import draw_figures
from cosdefense.report.groups import group_runs
from cosdefense.report.page import render_report
from cosdefense.report.results import describe_results, make_table, to_json
from cosdefense.runs.metrics import Detection, summarize
from cosdefense.runs.packed_records import compact, read_pack, write_pack
from cosdefense.runs.records import RunRecord
from paper_runs import make
from synthetic_runs import make_run, make_runs


def changed(run: RunRecord, **settings: Any) -> RunRecord:
    return replace(run, header={**run.header, "experiment": {**run.header["experiment"], **settings}})


def settings(runs: list[RunRecord]) -> list[tuple[str, int]]:
    return [(group.setting, len(group.runs)) for group in group_runs(runs)]


def test_seeds_of_one_experiment_are_one_group() -> None:
    assert settings([make_run(seed=seed, rounds=4) for seed in range(3)]) == [("", 3)]


def test_experiments_are_distinguished_by_name_and_by_what_differs() -> None:
    runs = [make_run(seed=seed, rounds=4) for seed in range(2)]
    assert settings([*runs, changed(runs[0], name="other")]) == [("synthetic", 2), ("other", 1)]
    longer = make_run(rounds=5)
    assert settings([*runs, longer]) == [("schedule.rounds = 4", 2), ("schedule.rounds = 5", 1)]
    both = [*runs, longer, changed(runs[0], name="other")]
    assert settings(both) == [
        ("synthetic, schedule.rounds = 4", 2),
        ("synthetic, schedule.rounds = 5", 1),
        ("other", 1),
    ]
    bare = changed(runs[0], extra=1)
    assert settings([runs[0], bare]) == [("", 1), ("extra = 1", 1)]


def test_a_label_that_means_two_things_is_two_groups() -> None:
    run = make_run(rounds=4)
    other = changed(run, defenses=[{"label": "cosdefense", "name": "cosdefense", "layer": "head"}])
    assert settings([run, other]) == [("", 1), ("defense.layer = head", 1)]


@pytest.mark.slow
def test_tables_figures_and_words_name_the_setting() -> None:
    runs = [
        make(name, attack, "CosDefense", 0) for name in ("paper-mnist", "paper-skew-0.1") for attack in ("none", "x")
    ]
    headings, rows = make_table(group_runs(runs))
    assert headings[:4] == ["Defense", "Setting", "Attack", "Seeds"]
    assert [row[1:3] for row in rows] == [
        [name, a] for name in ("paper-mnist", "paper-skew-0.1") for a in ("none", "x")
    ]
    figures = {figure.name: figure for figure in draw_figures(runs)}
    assert [panel.title for panel in figures["accuracy"].panels] == [
        "paper-mnist, without an attack", "paper-mnist, under x",
        "paper-skew-0.1, without an attack", "paper-skew-0.1, under x",
    ]  # fmt: skip
    assert figures["scores"].panels[1].title == "paper-mnist, CosDefense under x"
    assert "In paper-skew-0.1, under x (from round 20 on), CosDefense ended at" in describe_results(group_runs(runs))
    lines = json.loads(to_json(group_runs(runs)))
    assert [line["experiment"] for line in lines] == [line["setting"] for line in lines]
    assert {line["dataset"] for line in lines} == {"mnist"}
    titles = [panel.title for panel in figures["grid"].panels]
    assert "Honest updates rejected, paper-skew-0.1" in titles
    assert "paper-skew-0.1" in render_report(runs, list(figures.values()), "t")


def test_packed_runs_have_the_same_tables_and_no_pictures_of_what_they_lack(tmp_path: Path) -> None:
    runs = [
        replace(run, summary=summarize(run.rounds)) for run in make_runs(seeds=2, attacks=("ipm", "none"), rounds=90)
    ]
    write_pack(tmp_path / "pack.jsonl.gz", map(compact, runs))
    small = list(read_pack(tmp_path / "pack.jsonl.gz"))
    whole, less = group_runs(runs), group_runs(small)
    assert make_table(whole) == make_table(less)
    assert describe_results(whole) == describe_results(less)
    assert [group.detection for group in whole] == [group.detection for group in less]
    assert whole[2].detection == Detection.of(record for run in whole[2].runs for record in run.rounds)
    assert json.loads(to_json(whole)) == json.loads(to_json(less))
    drawn, kept = ({figure.name: figure for figure in draw_figures(some)} for some in (runs, small))
    assert set(drawn) - set(kept) == {"scores", "rejections", "split"}
    for name in ("grid", "confusion"):
        assert [panel.rows for panel in drawn[name].panels] == [panel.rows for panel in kept[name].panels]
    curves = [[[row["round"] for row in panel.rows] for panel in some["accuracy"].panels] for some in (drawn, kept)]
    assert curves[0] == curves[1]  # their heights differ by the rounding of the file
    assert whole[0].attack_starts == less[0].attack_starts == [60]
