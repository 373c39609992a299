"""The arena's report: its numbers against what was worked out by hand, and its page."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("altair", reason='needs the extra "report"')
pytest.importorskip("vl_convert", reason='needs the extra "report"')

from test_paper_report import Tables, read

from arena_runs import arena_runs, make, pair
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import build_defense, describe
from cosdefense.report.table import tables_to_markdown
from cosdefense.report.theme import HARM
from cosdefense.runs.records import RoundRecord, RunRecord
from cosdefense.studies.arena.best import list_best
from cosdefense.studies.arena.defense_results import list_settings
from cosdefense.studies.arena.figures import draw_arena_figures
from cosdefense.studies.arena.intervals import QUANTILES, find_interval
from cosdefense.studies.arena.page import render_arena_page
from cosdefense.studies.arena.part_options import show_unusual_options
from cosdefense.studies.arena.plan import Choice, plan
from cosdefense.studies.arena.report import write_arena_report
from cosdefense.studies.arena.tables import describe_arena, make_arena_tables
from synthetic_runs import make_run

RANKING = "MNIST, 30% attackers: every defense in its worst case"
ACCURACIES = "MNIST, 30% attackers: accuracy under every attack"


def tables_of(runs: list[RunRecord]) -> Tables:
    return read(tables_to_markdown(make_arena_tables(list_settings(runs)), "t"))


def ranking_of(runs: list[RunRecord]) -> dict[str, dict[str, str]]:
    return {row["Defense"]: row for row in tables_of(runs)[RANKING]}


# Clean: (0.90 + 0.94) / 2 = 0.92. The median: ipm 0.42, ALIE 0.80, patch 0.87, adaptive 0.30, mean 0.5975.
# CosDefense: ipm 0.86, ALIE and adaptive (0.10 + 0) / 2 = 0.05, patch 0.90, mean 0.465; it survived (> 0.46) ipm and
# patch, where it rejected 0.32 and 0.38 of the honest. Krum survived patch alone: 0.40 is less than half of 0.92.
LOST = {
    "median": ("adaptive", "62.0", "32.2", "62.0", "50.0", "3.0"),
    "plain": ("ipm", "82.0", "46.0", "81.0", "82.0", "0.0"),
    "CosDefense": ("ALIE", "87.0", "45.5", "87.0", "87.0", "-2.0"),
    "FLTrust": ("adaptive", "22.0", "8.2", "22.0", "4.0", "2.0"),
    "Krum": ("ALIE", "82.0", "54.5", "72.0", "82.0", "12.0"),
}
COLUMNS = ("Worst attack", "Lost, worst case", "Lost, mean", "Lost, adaptive", "Lost, not adaptive", "Lost, no attack")


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
    assert "median has the best worst case: it loses 62.0 points, under adaptive." in text
    assert "Runs of it that collapse: 4 of 8." in text  # both seeds of ipm and adaptive
    assert "Under attackers that adapt to it, median loses least: 62.0 points." in text
    assert "FLTrust" not in text


def test_who_met_fewer_attacks_is_not_called_the_best() -> None:
    runs = [*arena_runs(), *pair("FoolsGold", "ALIE", (0.91, 0.91))]
    assert "median has the best worst case" in describe_arena(list_settings(runs))
    rows = ranking_of(runs)
    assert next(iter(rows)) == "FoolsGold"
    assert {name: row["Attacks met"] for name, row in rows.items()} == dict.fromkeys(LOST, "4") | {"FoolsGold": "1"}
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
    assert row["Worst attack"] == "adaptive"
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


def test_heat_maps_show_and_color_points_lost() -> None:
    (figure,) = draw_arena_figures(list_settings(arena_runs())).values()
    assert [panel.title for panel in figure.panels] == ["No oracle", "With an oracle"]
    first, second = ({(row["defense"], row["attack"]): row for row in panel.rows} for panel in figure.panels)
    assert {name for name, _ in first} == {"median", "plain", "CosDefense"}
    assert {name for name, _ in second} == {"Krum", "FLTrust"}
    assert (first["median", "ipm"]["lost"], first["median", "ipm"]["accuracy"]) == pytest.approx((50.0, 0.42))
    assert first["median", "worst case"]["lost"] == pytest.approx(62)
    assert first["CosDefense", "none"]["lost"] == pytest.approx(-2)
    for (
        panel
    ) in figure.panels:  # one scale for all: nothing lost is pale, everything lost is deep, and a legend says so
        color = next(layer["encoding"]["color"] for layer in panel.spec()["layer"] if "color" in layer["encoding"])
        assert color["field"] == "lost"
        assert color["scale"] == {"domain": [0, 92.0], "range": list(HARM), "clamp": True}
        assert color["legend"]["title"] == "points lost"
    assert "the deeper the color, the more is lost" in figure.marks


def test_attacks_that_know_the_defense_stand_last() -> None:
    runs = [run for run in arena_runs() if run.header["attack"] == "adaptive"]
    runs += [run for run in arena_runs() if run.header["attack"] != "adaptive"]
    (figure,) = draw_arena_figures(list_settings(runs)).values()
    domain = figure.panels[0].spec()["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert domain == ["worst case", "none", "ipm", "ALIE", "patch", "adaptive"]


def test_a_collapse_is_a_run_below_half_of_the_clean_accuracy() -> None:
    runs = [
        *pair("plain", "none", (0.8, 0.8)),
        *pair("median", "ipm", (0.4, 0.39)),
        *pair("median", "ALIE", (0.7, 0.7)),
    ]
    assert ranking_of(runs)["median"]["Collapses"] == "1 of 4"
    assert ranking_of(runs)["plain"]["Collapses"] == "–"


def test_the_worst_class_stands_beside_that_of_plain_averaging() -> None:
    runs = [
        *pair("plain", "none", (0.8, 0.8), worst_class=(0.5, 0.7)),
        *pair("median", "none", (0.8, 0.8), worst_class=0.4),
        *pair("median", "ipm", (0.7, 0.7), worst_class=(0.1, 0.3)),
        *pair("median", "ALIE", (0.7, 0.7), worst_class=0.3),
    ]
    row = ranking_of(runs)["median"]
    assert (row["Worst-class recall, attacked"], row["Worst-class recall, no attack"]) == ("20.0%", "40.0%")
    (setting,) = list_settings(runs)
    table = make_arena_tables([setting])["defenses-mnist-30"]
    assert "That of plain averaging without an attack is 60.0%." in table.note


def test_intervals_pair_seeds_and_stay_within_what_is_possible() -> None:
    """Losses of 10 and 12 points: mean 11, standard deviation √2, t = 12.7062 with one degree of freedom."""
    runs = [*pair("plain", "none", (0.9, 0.8)), *pair("median", "ipm", (0.8, 0.68))]
    assert ranking_of(runs)["median"]["95% interval"] == "-1.7 to 23.7"
    wide = [*pair("plain", "none", (0.9, 0.8)), *pair("median", "ipm", (0.9, 0.1))]
    assert ranking_of(wide)["median"]["95% interval"] == "-15.0 to 85.0"  # 85 is all there was, 100 the best there is
    single = [make("plain", "none", 0, 0.9), make("median", "ipm", 0, 0.8)]
    assert "95% interval" not in ranking_of(single)["median"]


def test_quantiles_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats", reason="comes with scikit-learn")
    assert stats.t.ppf(0.975, range(1, 30)) == pytest.approx(QUANTILES, abs=5e-5)
    values = [0.3, 0.1, 0.4, 0.1, 0.5]
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert find_interval(values, -1, 1) == pytest.approx((low, high), abs=1e-4)


def both_sets() -> list[RunRecord]:
    """Two design seeds; on two test seeds the median is worse and plain averaging better."""
    plain = [make("plain", "none", seed, tail) for seed, tail in ((0, 0.9), (1, 0.9), (10, 0.94), (11, 0.96))]
    median = [make("median", "ipm", seed, tail) for seed, tail in ((0, 0.7), (1, 0.7), (10, 0.4), (11, 0.6))]
    return [*plain, *median]


def test_design_and_test_seeds_stand_side_by_side() -> None:
    tables = tables_of(both_sets())
    rows = {row["Defense"]: row for row in tables["MNIST, 30% attackers: design seeds and test seeds"]}
    cells = [rows["median"][f"Lost, worst case, {seeds}"] for seeds in ("design", "test")]
    assert cells == ["20.0", "45.0"]  # each below plain averaging on its own seeds: 0.9 − 0.7 and 0.95 − 0.5
    assert [rows["median"][f"Collapses, {seeds}"] for seeds in ("design", "test")] == ["0 of 2", "1 of 2"]
    design, test = (tables[f"MNIST, 30% attackers{end}: accuracy under every attack"] for end in ("", ", test seeds"))
    assert [row["ipm"] for row in design if row["Defense"] == "median"] == ["70.0 ± 0.0%"]
    assert [row["ipm"] for row in test if row["Defense"] == "median"] == ["50.0 ± 14.1%"]
    found = list_settings(both_sets())
    page = render_arena_page(both_sets(), found, make_arena_tables(found), draw_arena_figures(found), "t")
    assert (
        page.index('id="seeds-mnist-30"') < page.index('id="arena-mnist-30"') < page.index('id="arena-mnist-30-test"')
    )


def of_code(run: RunRecord, commit: str, **more: str) -> RunRecord:
    return replace(run, header={**run.header, "commit": commit, **more})


def test_test_seeds_of_several_versions_are_marked() -> None:
    design, test = both_sets()[:2], both_sets()[2:4]
    frozen = [*(of_code(run, "aaa with changes") for run in design), *(of_code(run, "bbb", tag="v2") for run in test)]
    text = describe_arena(list_settings(frozen))
    assert "Design seeds 0–1: code aaa with changes. Test seeds 10–11: code bbb (v2)." in text
    assert "not one committed version" not in text
    for codes in (("bbb", "ccc"), ("bbb with changes", "bbb with changes")):
        mixed = [*design, *(of_code(run, code) for run, code in zip(test, codes, strict=True))]
        assert "not one committed version" in describe_arena(list_settings(mixed))


def test_options_that_are_not_the_defaults_are_shown() -> None:
    centered = build_defense({"aggregator": {"name": "centered-clipping", "radius": 0.02}})
    momentum = build_defense({"name": "centered-clipping", "radius": 10.0, "momentum": 0.5})
    krum = build_defense({"name": "krum", "contamination": 0.2})  # everybody is told the share
    shown = [show_unusual_options(describe(part)) for part in (centered, momentum, krum)]
    assert shown == ["radius = 0.02", "momentum = 0.5", ""]
    assert show_unusual_options({"filters": [{"name": "mine:Rule", "k": 3}], "aggregator": {"name": "mean"}}) == ""


def test_points_are_lost_against_the_same_seeds() -> None:
    """Seed 10 is an easy one: with 0.6 of 0.9 the median loses more there than with 0.5 of 0.7 on both seeds."""
    runs = [*pair("plain", "none", (0.5, 0.9)), *pair("median", "ipm", (0.5, 0.5)), make("median", "ALIE", 1, 0.6)]
    row = ranking_of(runs)["median"]
    assert (row["Worst attack"], row["Lost, worst case"], row["Lost, mean"]) == ("ALIE", "30.0", "25.0")
    (figure,) = draw_arena_figures(list_settings(runs)).values()
    lost = {row["attack"]: row["lost"] for row in figure.panels[0].rows if row["defense"] == "median"}
    assert lost == {"worst case": 30.0, "ipm": 20.0, "ALIE": 30.0}


def test_the_table_says_how_options_were_chosen() -> None:
    def note(runs: list[RunRecord]) -> str:
        return make_arena_tables(list_settings(runs))["defenses-mnist-30"].note

    assert "cosdefense arena --tune was not used" in note(arena_runs())
    source = {"field": "mnist", "attackers": 0.3, "seeds": [0, 1, 2, 3, 4], "attacks": ["ALIE"], "rounds": 300}
    tuned = [replace(run, header={**run.header, "tuned": source}) for run in arena_runs()]
    words = "the best of at most 6 settings by their worst case on mnist, 30% attackers, seeds 0–4"
    assert words in note(tuned)
    assert "but for runs that were made before" not in note(tuned)
    assert "but for runs that were made before" in note([*arena_runs()[:2], *tuned[2:]])


def test_no_defense_is_not_called_none_in_a_sentence() -> None:
    runs = [run for run in arena_runs() if run.label == "plain"]
    named = [replace(run, header={**run.header, "defense": "none"}) for run in runs]
    text = describe_arena(list_settings(named))
    assert "In its worst case plain averaging loses" in text  # alone it is not the best of anything
    assert "plain averaging loses 81.0 points" in text


def test_the_best_rules_are_those_with_the_best_worst_case() -> None:
    runs = arena_runs()
    planned = plan(["mnist"], [0.3], Choice(seeds=[0])).runs
    asked = [run for run in planned if run.defenses[0].label in ("median", "CosDefense", "Krum", "FLTrust")]
    assert list_best(2, asked, runs) == ["FLTrust", "median"]
    assert list_best(9, asked, runs) == ["FLTrust", "median", "plain", "Krum", "CosDefense"]
    with pytest.raises(ConfigError, match="over the same 10 runs: median lacks 1"):
        list_best(2, asked, [run for run in runs if run is not pick(runs, "median", "ALIE")])
    lacking = [run for run in planned if run.defenses[0].label == "FLAME"]
    with pytest.raises(ConfigError, match="FLAME lacks 10"):
        list_best(2, lacking, runs)
    with pytest.raises(ConfigError, match="with design seeds: there are none"):
        list_best(2, asked, [make("median", "ipm", 10, 0.9)])
    with pytest.raises(ConfigError, match="--best must be at least 1, got 0"):
        list_best(0, asked, runs)


def pick(runs: list[RunRecord], defense: str, attack: str) -> RunRecord:
    return next(run for run in runs if (run.label, run.header["attack"]) == (defense, attack))


def test_few_defenses_are_also_drawn_over_the_rounds() -> None:
    curved = [
        replace(run, rounds=tuple(RoundRecord(n, (), (), accuracy=0.1 * n) for n in range(4))) for run in both_sets()
    ]
    figures = draw_arena_figures(list_settings(curved))
    assert set(figures) == {"arena-mnist-30", "arena-mnist-30-test", "curves-mnist-30", "curves-mnist-30-test"}
    assert [panel.title for panel in figures["curves-mnist-30"].panels] == ["without an attack", "under ipm"]
    assert "Bands: lowest to highest seed" in figures["curves-mnist-30"].marks
    assert "Level dashed line: end of plain averaging without an attack." in figures["curves-mnist-30"].marks
    for panel in figures["curves-mnist-30-test"].panels:
        assert [{"mean": 0.95}] in panel.spec()["datasets"].values()


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
