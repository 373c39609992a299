"""The arena's report: its numbers against what was worked out by hand, and its page."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("altair", reason='needs the extra "report"')
pytest.importorskip("vl_convert", reason='needs the extra "report"')

from test_paper_report import Tables, read

from arena_runs import arena_runs, make, pair
from cosdefense.report.table import tables_to_markdown
from cosdefense.runs.records import RunRecord
from cosdefense.studies.arena.defense_results import list_settings
from cosdefense.studies.arena.figures import draw_arena_figures
from cosdefense.studies.arena.page import render_arena_page
from cosdefense.studies.arena.report import write_arena_report
from cosdefense.studies.arena.tables import describe_arena, make_arena_tables
from synthetic_runs import make_run

RANKING = "MNIST, 30% attackers: every defense in its worst case"
ACCURACIES = "MNIST, 30% attackers: accuracy under every attack"


def tables_of(runs: list[RunRecord]) -> Tables:
    return read(tables_to_markdown(make_arena_tables(list_settings(runs)), "t"))


def ranking_of(runs: list[RunRecord]) -> dict[str, dict[str, str]]:
    return {row["Defense"]: row for row in tables_of(runs)[RANKING]}


# Clean: (0.90 + 0.94) / 2 = 0.92. The median: ipm 0.42, ALIE 0.80, patch 0.87, mean 0.69667.
# CosDefense: ipm 0.86, ALIE (0.10 + 0) / 2 = 0.05, patch 0.90, mean 0.60333; it survived (> 0.46) ipm and patch, where
# it rejected 0.32 and 0.38 of the honest. Krum survived patch alone: 0.40 is less than half of 0.92.
LOST = {
    "median": ("ipm", "50.0", "22.3", "62.0", "3.0"),
    "plain": ("ipm", "82.0", "34.3", "81.0", "0.0"),
    "CosDefense": ("ALIE", "87.0", "31.7", "87.0", "-2.0"),
    "FLTrust": ("ipm", "4.0", "3.7", "22.0", "2.0"),
    "Krum": ("ALIE", "82.0", "48.7", "72.0", "12.0"),
}
COLUMNS = ("Worst attack", "Lost, worst case", "Lost, mean", "Lost, adaptive", "Lost, no attack")


def test_what_each_defense_lost() -> None:
    rows = tables_of(arena_runs())[RANKING]
    assert {row["Defense"]: tuple(row[name] for name in COLUMNS) for row in rows} == LOST


def test_the_best_worst_case_stands_first_and_oracles_apart() -> None:
    rows = tables_of(arena_runs())[RANKING]
    assert [row["Defense"] for row in rows] == list(LOST)
    assert [row["Oracle"] for row in rows] == ["No oracle"] * 3 + ["With an oracle"] * 2
    assert [row["Needs"] for row in rows] == ["nothing"] * 3 + ["server data", "guess of attackers"]


def test_memory_is_no_oracle() -> None:
    runs = [*arena_runs(), *pair("FoolsGold", "ipm", (0.5, 0.5))]
    row = ranking_of(runs)["FoolsGold"]
    assert (row["Oracle"], row["Needs"]) == ("No oracle", "memory per client")


def test_whom_a_destroyed_model_makes_a_rule_reject_does_not_count() -> None:
    rows = ranking_of(arena_runs())
    shares = {name: (row["Honest rejected, no attack"], row["Honest rejected, attacked"]) for name, row in rows.items()}
    assert shares == {
        "median": ("–", "–"),  # judges nobody
        "plain": ("–", "–"),
        "CosDefense": ("42.0%", "35.0%"),
        "FLTrust": ("10.0%", "20.0%"),
        "Krum": ("90.0%", "90.0%"),
    }


def test_exactly_half_is_not_survival() -> None:
    runs = [*pair("plain", "none", (0.8, 0.8)), *pair("Krum", "none", (0.8, 0.8), honest_rejected=0.5)]
    for end, cell in ((0.4, "–"), (0.41, "70.0%")):
        attacked = pair("Krum", "ipm", (end, end), honest_rejected=0.7)
        assert ranking_of([*runs, *attacked])["Krum"].get("Honest rejected, attacked", "–") == cell


def test_backdoors_and_milliseconds() -> None:
    rows = ranking_of(arena_runs())
    assert {name: row["Backdoor success"] for name, row in rows.items()} == {
        "median": "50.0%", "plain": "96.0%", "CosDefense": "25.0%", "FLTrust": "10.0%", "Krum": "99.0%",
    }  # fmt: skip
    assert rows["median"]["ms per round"] == "3"  # 0.9 s in 300 rounds; one run of ten thousand milliseconds is noise
    assert rows["plain"]["ms per round"] == "–"
    without = [run for run in arena_runs() if run.header["attack"] != "patch"]
    assert "Backdoor success" not in ranking_of(without)["median"]


def test_accuracies_by_attack() -> None:
    rows = {row["Defense"]: row for row in tables_of(arena_runs())[ACCURACIES]}
    assert list(rows["median"]) == ["Oracle", "Defense", "none", "ipm", "ALIE", "patch", "adaptive"]
    assert rows["median"]["ipm"] == "42.0 ± 2.8%"
    assert rows["CosDefense"]["ALIE"] == "5.0 ± 7.1%"  # NaN is no accuracy at all
    assert rows["CosDefense"]["adaptive"] == "5.0 ± 7.1%"  # and so it is read back from JSON


def test_the_words_name_the_best_without_an_oracle() -> None:
    text = describe_arena(list_settings(arena_runs()))
    assert text.startswith("50 runs. On MNIST, 30% attackers, plain averaging without an attack reaches 92.0%.")
    assert "median has the best worst case: it loses 50.0 points, under ipm." in text
    assert "Under attackers that adapt to it, median loses least: 62.0 points." in text
    assert "FLTrust" not in text


def test_who_met_fewer_attacks_is_not_called_the_best() -> None:
    runs = [*arena_runs(), *pair("FoolsGold", "ALIE", (0.91, 0.91))]
    assert "median has the best worst case" in describe_arena(list_settings(runs))
    rows = ranking_of(runs)
    assert next(iter(rows)) == "FoolsGold"
    assert {name: row["Attacks met"] for name, row in rows.items()} == dict.fromkeys(LOST, "3") | {"FoolsGold": "1"}
    assert tables_of(runs)[ACCURACIES][0]["ipm"] == "–"
    assert "Attacks met" not in ranking_of(arena_runs())["median"]


def test_unfinished_runs_are_named_and_what_they_have_not_measured_is_left_out() -> None:
    begun = replace(make("median", "ALIE", 2, None), summary=None, rounds=())
    runs = [*arena_runs(), begun]
    assert "1 of them not finished" in describe_arena(list_settings(runs))
    assert tables_of(runs)[ACCURACIES] == tables_of(arena_runs())[ACCURACIES]


def test_without_the_yardstick_nothing_is_measured_but_all_is_shown() -> None:
    runs = [run for run in arena_runs() if (run.label, run.header["attack"]) != ("plain", "none")]
    fields = list_settings(runs)
    assert "was not run yet" in describe_arena(fields)
    row = ranking_of(runs)["median"]
    assert row["Worst attack"] == "ipm"
    assert "Lost, worst case" not in row
    assert tables_of(runs)[ACCURACIES][0]["ALIE"] == "80.0 ± 0.0%"
    assert draw_arena_figures(fields) == {}


def fields() -> list[RunRecord]:
    """Two datasets, one of them with two shares of attackers."""
    others = [
        make(defense, attack, 0, tail, dataset=dataset, share=share)
        for dataset, share in (("fashion-mnist", 0.1), ("fashion-mnist", 0.4))
        for defense, attack, tail in (("plain", "none", 0.8), ("plain", "ipm", 0.1), ("median", "ipm", 0.8 - share))
    ]
    return [*arena_runs(), *others]


def test_fields_are_measured_by_their_own_clean_run() -> None:
    tables = tables_of(fields())
    assert len(tables) == 6
    for share in (10, 40):
        (row, _) = tables[f"Fashion-MNIST, {share}% attackers: every defense in its worst case"]
        assert (row["Defense"], row["Lost, worst case"]) == ("median", f"{share}.0")
    assert tables[RANKING] == tables_of(arena_runs())[RANKING]


def test_runs_of_another_length_are_a_field_of_their_own() -> None:
    short = [make("plain", "none", seed, 0.5, rounds=100) for seed in (0, 1)]
    titles = list(tables_of([*arena_runs(), *short]))
    assert len(titles) == 4
    assert titles[2].startswith("MNIST, 30% attackers, training.rounds = 100:")
    names = list(make_arena_tables(list_settings([*arena_runs(), *short])))
    assert len(set(names)) == 4


def test_heat_maps_show_points_and_color_what_is_left() -> None:
    (figure,) = draw_arena_figures(list_settings(arena_runs())).values()
    assert [panel.title for panel in figure.panels] == ["No oracle", "With an oracle"]
    first, second = ({(row["defense"], row["attack"]): row for row in panel.rows} for panel in figure.panels)
    assert {name for name, _ in first} == {"median", "plain", "CosDefense"}
    assert {name for name, _ in second} == {"Krum", "FLTrust"}
    cell = first["median", "ipm"]
    assert (cell["lost"], cell["share"], cell["accuracy"]) == pytest.approx((50.0, 0.42 / 0.92, 0.42), abs=1e-4)
    assert first["CosDefense", "none"]["share"] == 1  # more than the clean run has no deeper color
    assert first["CosDefense", "none"]["lost"] == pytest.approx(-2)


def test_runs_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the runs belongs to an arena: synthetic"):
        list_settings([make_run(rounds=2)])


def test_page_tables_and_pictures_lie_side_by_side(tmp_path: Path) -> None:
    report = write_arena_report(arena_runs(), tmp_path / "out", "Arena")
    assert sorted(path.name for path in report.page.parent.iterdir()) == [
        "arena-mnist-30.png", "report.html", "tables.md",
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in report.figures)
    assert report.tables is not None
    title, paragraph, *_ = report.tables.read_text(encoding="utf-8").split("\n\n")
    assert title == "# Arena"
    assert paragraph.split() == describe_arena(list_settings(arena_runs())).split()  # wrapped


def test_the_page_is_well_formed() -> None:
    runs = fields()
    found = list_settings(runs)
    tables, figures = make_arena_tables(found), draw_arena_figures(found)
    text = render_arena_page(runs, found, tables, figures, "Arena")
    assert text == render_arena_page(runs, found, tables, figures, "Arena")
    body = text[: text.index('<script type="application/json"')]
    assert "median has the best worst case" in body
    levels = [int(level) for level in re.findall(r"<h([1-6])", body)]
    assert levels.count(1) == levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    names = re.findall(r'id="([^"]*)"', body)
    assert len(names) == len(set(names))
    shown = ("mnist-30", "fashion-mnist-10", "fashion-mnist-40")
    order = [f"{kind}-{field}" for field in shown for kind in ("arena", "defenses")]
    places = [body.index(f'id="{name}"') for name in (*order, "data", "settings")]
    assert places == sorted(places)
    assert body.count("accuracy under every attack</summary>") == 3
    assert len(re.findall(r'download="results\.(?:csv|json)"', body)) == 2
    for tag in ("section", "table", "tr", "th", "td", "details", "figure", "div", "tbody", "thead"):
        assert len(re.findall(rf"<{tag}[ >]", body)) == body.count(f"</{tag}>"), tag


def test_a_field_without_a_yardstick_still_has_its_tables_on_the_page() -> None:
    runs = [run for run in arena_runs() if (run.label, run.header["attack"]) != ("plain", "none")]
    found = list_settings(runs)
    text = render_arena_page(runs, found, make_arena_tables(found), draw_arena_figures(found), "t")
    assert 'id="accuracies-mnist-30"' in text
    assert 'id="defenses-mnist-30"' in text
