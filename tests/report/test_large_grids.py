"""Grids of many defenses and attacks: order, worst cases, tables, figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosdefense.report.figures import draw_figures
from cosdefense.report.groups import group_runs
from cosdefense.report.large_grids import ATTACKER_COUNT, DATA, ONLY_UPDATES, list_large_grids, make_grid_tables
from cosdefense.report.write import write_report
from cosdefense.runs.metrics import summarize
from cosdefense.runs.records import RoundRecord, RunRecord

ATTACKS = ("strong", "none", "weak", "a", "b", "c")
DEFENSES = tuple(f"rule {number}" for number in range(10))
NEEDS = {"rule 3": ["guess of attackers"], "rule 4": ["server data", "memory per client"]}


def make_grid(n_defenses: int = 10, **summary: Any) -> list[RunRecord]:
    """Two seeds. Rule i reaches 0.9 − i / 100 without an attack and 0.3 + i / 100 under the strong one."""
    runs = []
    for attack in ATTACKS:
        for i, defense in enumerate(DEFENSES[:n_defenses]):
            for seed in (0, 1):
                end = {"none": 0.9 - i / 100, "strong": 0.3 + i / 100 + 0.1 * seed, "weak": 0.8}.get(attack, 0.7)
                experiment = {"name": "g", "schedule": {"attack_stop": 80}, "training": {}, "data": {}}
                header: dict[str, Any] = {"experiment": experiment, "attack": attack, "defense": defense, "seed": seed}
                header |= {"needs": NEEDS.get(defense, []), "thinned": True}
                own = summarize([]) | {"tail_accuracy": end} | (summary if attack != "none" else {})
                runs.append(RunRecord(header, (RoundRecord(99, (), (), accuracy=end),), own))
    return runs


def test_order_worst_case_and_sides() -> None:
    (grid,) = list_large_grids(group_runs(make_grid()))
    assert grid.attacks == ["none", "weak", "a", "b", "c", "strong"]
    value, attack = grid.worst("rule 2")
    assert attack == "strong"
    assert value == pytest.approx(0.37)  # the mean of 0.32 and 0.42
    sides = dict(grid.sides())
    assert list(sides) == [ONLY_UPDATES, ATTACKER_COUNT, DATA]
    assert sides[ONLY_UPDATES] == [f"rule {i}" for i in (9, 8, 7, 6, 5, 2, 1, 0)]
    assert sides[ATTACKER_COUNT] == ["rule 3"]
    assert sides[DATA] == ["rule 4"]


def test_a_model_that_is_not_a_number_counts_as_zero() -> None:
    runs = make_grid()
    assert runs[0].summary is not None
    broken = [RunRecord(run.header, run.rounds, {**(run.summary or {}), "tail_accuracy": None}) for run in runs[:2]]
    (grid,) = list_large_grids(group_runs([*broken, *runs[2:]]))
    assert grid.worst("rule 0") == (0.0, "strong")


def test_success_is_worst_where_it_is_highest() -> None:
    runs = make_grid(success_at_stop=0.5, clean_target_rate=0.01, success_lifespan=10)
    for index, run in enumerate(runs):
        if (run.header["attack"], run.header["defense"]) == ("weak", "rule 9"):
            runs[index] = RunRecord(run.header, run.rounds, {**(run.summary or {}), "success_at_stop": 0.75})
    grids = {grid.question.key: grid for grid in list_large_grids(group_runs(runs))}
    assert set(grids) == {"tail_accuracy", "success_at_stop", "clean_target_rate", "success_lifespan"}
    success = grids["success_at_stop"]
    assert "none" not in success.attacks
    assert success.attacks[-1] == "weak"
    assert success.worst("rule 9") == (0.75, "weak")
    assert dict(success.sides())[ONLY_UPDATES][-1] == "rule 9"
    assert grids["success_lifespan"].top == 20
    tables = make_grid_tables(list(grids.values()))
    rows = {row[1]: row for row in tables["grid-success-1"].rows}
    assert rows["rule 9"][2:4] == ("weak", "75.0")
    assert next(iter(tables["grid-lasting-3"].rows))[3] == "10.0"


def test_a_small_grid_is_drawn_as_before() -> None:
    runs = make_grid(n_defenses=3)
    assert list_large_grids(group_runs(runs)) == []
    assert "grid-accuracy" not in {figure.name for figure in draw_figures(runs)}


@pytest.mark.slow
def test_the_report_of_a_large_grid(tmp_path: Path) -> None:
    report = write_report(make_grid(), tmp_path, "g")
    assert [path.name for path in report.figures] == ["grid-accuracy.png"]
    assert report.tables is not None
    text = report.tables.read_text(encoding="utf-8")
    line = "| Needs nothing but the updates | rule 9 | strong | 44.0 | 81.0 | 80.0 | 70.0 | 70.0 | 70.0 | 44.0 |"
    assert line in text.splitlines()
    (figure,) = draw_figures(make_grid())
    color = figure.panels[0].spec()["layer"][0]["encoding"]["color"]
    assert (color["legend"]["title"], color["scale"]["domain"]) == ("accuracy", [0, 1])
    assert len(figure.panels[0].rows) == 8 * 7  # six attacks and the worst case


def test_pictures_say_what_their_numbers_mean() -> None:
    figures = {figure.name: figure for figure in draw_figures(make_grid(success_at_stop=0.4))}
    assert "Accuracy on held-out data in %" in figures["grid-accuracy"].marks
    assert figures["grid-accuracy"].marks.endswith("Blue: the deeper, the better.")
    assert figures["grid-success"].marks.endswith("Red: the deeper, the worse.")
