from __future__ import annotations

import struct
from dataclasses import replace
from io import BytesIO
from statistics import fmean
from typing import Any

import numpy as np
import pytest

pytest.importorskip("altair", reason='needs the extra "report"')
pytest.importorskip("vl_convert", reason='needs the extra "report"')

from PIL import Image

from cosdefense.report.chart_data import MAX_BINS, MAX_CLIENTS, MAX_DOTS, MAX_POINTS
from cosdefense.report.figure import Figure, Panel
from cosdefense.report.figures import MAX_PANELS, draw_figures
from cosdefense.report.looks import KNOWN, OTHERS, list_looks
from cosdefense.report.theme import HARM, HEAT
from cosdefense.runs.metrics import Detection, final_accuracy
from cosdefense.runs.records import RunRecord
from synthetic_runs import ATTACK_START, CLASSES, DEFENSES, make_federation, make_run, make_runs

pytestmark = pytest.mark.slow  # renders pictures


def figures(runs: list[RunRecord]) -> dict[str, Figure]:
    return {figure.name: figure for figure in draw_figures(runs)}


def drawn_rows(panel: Panel) -> list[dict[str, Any]]:
    """What the page's chart really draws."""
    rows: list[dict[str, Any]] = panel.spec()["datasets"]["rows"]
    return rows


def test_curves_are_the_mean_over_seeds_and_end_at_the_final_accuracy() -> None:
    runs = make_runs(seeds=3)
    (panel,) = figures(runs)["accuracy"].panels
    for defense in DEFENSES:
        seeds = [run for run in runs if run.label == defense]
        rows = {row["round"]: row for row in drawn_rows(panel) if row["defense"] == defense}
        assert sorted(rows) == [record.round for record in seeds[0].rounds if record.accuracy is not None]
        found = [run.rounds[71].accuracy or 0.0 for run in seeds]
        assert [rows[71][key] for key in ("mean", "low", "high", "seeds")] == pytest.approx(
            [fmean(found), min(found), max(found), 3], abs=1e-5
        )
        ends = [final_accuracy(run.rounds) or 0.0 for run in seeds]
        assert rows[max(rows)]["mean"] == pytest.approx(fmean(ends), abs=1e-5)


def test_long_curves_are_thinned_but_keep_their_last_round() -> None:
    (panel,) = figures([make_run(rounds=1500)])["accuracy"].panels
    rounds = [row["round"] for row in drawn_rows(panel)]
    assert len(rounds) <= MAX_POINTS
    assert rounds[-1] == 1499
    assert rounds == sorted(rounds)


def test_defenses_keep_the_order_in_which_they_were_given() -> None:
    runs = make_runs()[::-1]
    figure = figures(runs)["accuracy"]
    assert [entry.label for entry in figure.legend] == list(DEFENSES[::-1])
    color = figure.panels[0].spec()["layer"][0]["encoding"]["color"]
    assert color["scale"]["domain"] == list(DEFENSES[::-1])
    assert color["legend"] is None  # the page has its own, which wraps


def test_twenty_defenses_can_be_distinguished() -> None:
    runs = [make_run(f"defense {number}", rounds=4) for number in range(20)]
    legend = figures(runs)["accuracy"].legend
    assert len({(entry.color, entry.dash) for entry in legend}) == 20


def test_confusion_counts_are_those_of_the_metrics_over_all_seeds() -> None:
    runs = make_runs(seeds=2)
    figure = figures(runs)["confusion"]
    assert [panel.title for panel in figure.panels] == ["multi-krum", "cosdefense"]  # the others judge nobody
    for panel in figure.panels:
        detection = Detection.of(record for run in runs if run.label == panel.title for record in run.rounds)
        counts = {(row["truth"], row["fate"]): row for row in drawn_rows(panel)}
        assert counts["malicious", "rejected"]["count"] == detection.malicious_rejected
        assert counts["malicious", "accepted"]["count"] == detection.malicious_accepted
        assert counts["honest", "rejected"]["count"] == detection.honest_rejected
        assert counts["honest", "accepted"]["count"] == detection.honest_accepted
        assert counts["malicious", "rejected"]["share"] == pytest.approx(detection.recall, abs=1e-5)
        assert f"{detection.malicious_rejected:,} (" in counts["malicious", "rejected"]["label"]


def test_bars_count_liars_when_they_lied_and_honest_clients_always() -> None:
    run = make_run()
    (panel,) = figures([run])["rejections"].panels
    rows = {row["client"]: row for row in drawn_rows(panel)}
    for who in ("malicious", "honest"):
        client = next(int(row["client"]) for row in rows.values() if row["who"] == who)
        fates = [
            weight == 0
            for record in run.rounds
            for liar, identity, weight in zip(record.malicious or (), record.clients, record.weights, strict=True)
            if identity == client and liar == (who == "malicious")
        ]
        assert (rows[str(client)]["rejected"], rows[str(client)]["rounds"]) == (sum(fates), len(fates))
    assert sum(row["who"] == "malicious" for row in rows.values()) == 15
    shares = [row["share"] for row in drawn_rows(panel)]
    assert shares == sorted(shares, reverse=True)


def test_an_update_that_no_filter_saw_is_nobodys_rejection() -> None:
    run = make_run(rounds=100)
    unseen = tuple(
        replace(record, weights=(0.0,) * 10, scores={"cosdefense": (None,) * 10}) if record.round < 90 else record
        for record in run.rounds
    )
    drawn = figures([replace(run, rounds=unseen)])
    assert sum(row["rounds"] for row in drawn["rejections"].panels[0].rows) <= 100
    assert sum(row["count"] for row in drawn["confusion"].panels[0].rows) == 100


def test_more_clients_than_pixels_are_cut_and_the_title_says_so() -> None:
    (panel,) = figures([make_run(seed=seed) for seed in range(5)])["rejections"].panels  # 5 seeds of 50 clients
    assert len(panel.rows) == MAX_CLIENTS
    assert panel.title == "cosdefense (200 most rejected of 250 clients)"


def test_scores_are_binned_without_losing_any() -> None:
    run = make_run(rounds=1000)
    (panel,) = figures([run])["scores"].panels
    rows = drawn_rows(panel)
    truth = [
        (liar, score)
        for record in run.rounds
        for liar, score in zip(record.malicious or (), record.scores["cosdefense"], strict=True)
    ]
    for who in ("honest", "malicious"):
        mine = [row for row in rows if row["who"] == who]
        scores = [score for liar, score in truth if score is not None and liar == (who == "malicious")]
        assert len(mine) <= MAX_BINS
        assert sum(row["count"] for row in mine) == len(scores)
        total = sum(row["mean"] * row["count"] for row in mine)
        assert total / len(scores) == pytest.approx(fmean(scores), abs=1e-3)
        assert all(row["low"] <= row["mean"] <= row["high"] for row in mine)
    assert min(row["round"] for row in rows if row["who"] == "malicious") >= ATTACK_START


@pytest.mark.parametrize("largest", [0.0, 1e6])
def test_rounds_in_which_every_score_is_zero(largest: float) -> None:
    """Krum with a guess of too many attackers has no neighbors to sum: scores of zero, which no logarithm takes."""
    run = make_run(rounds=100)
    rounds = tuple(
        replace(record, scores={"krum": (0.0 if record.round < 50 else largest,) * len(record.clients)})
        for record in run.rounds
    )
    figure = figures([replace(run, rounds=rounds)])["scores"]
    assert figure.png().startswith(b"\x89PNG")


@pytest.mark.parametrize(("factor", "kind"), [(1.0, None), (1e6, "log")])
def test_scores_of_very_different_size_get_a_logarithmic_axis(factor: float, kind: str | None) -> None:
    run = make_run(rounds=100)
    rounds = tuple(
        replace(record, scores={"krum": tuple(1.0 + factor * liar for liar in record.malicious or ())})
        for record in run.rounds
    )
    (panel,) = figures([replace(run, rounds=rounds)])["scores"].panels
    assert panel.title == "cosdefense: krum"
    y = panel.spec()["layer"][0]["encoding"]["y"]
    assert y["scale"].get("type") == kind
    if kind:
        assert y["axis"]["values"] == [1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6]


def test_the_split_is_drawn_sample_by_sample() -> None:
    run = make_run()
    (panel,) = figures([run])["split"].panels
    for row in drawn_rows(panel):
        assert row["samples"] == run.header["split"][row["client"]][CLASSES.index(row["class"])]
    assert len(panel.rows) == 500
    (unnamed,) = figures([make_run(classes=None)])["split"].panels
    assert [row["class"] for row in unnamed.rows[:3]] == ["0", "1", "2"]


def test_the_grid_holds_the_mean_of_every_pair() -> None:
    runs = make_runs(seeds=2, attacks=("inner-product", "none"), rounds=100)
    accuracy, malicious, honest = figures(runs)["grid"].panels
    assert len(accuracy.rows) == 8
    assert {(row["attack"], row["defense"]) for row in malicious.rows} == {
        ("inner-product", "multi-krum"),
        ("inner-product", "cosdefense"),
    }
    for row in drawn_rows(accuracy):
        same = [run for run in runs if (run.header["attack"], run.label) == (row["attack"], row["defense"])]
        assert row["share"] == pytest.approx(fmean(final_accuracy(run.rounds) or 0.0 for run in same), abs=1e-5)
    for row in drawn_rows(honest):
        same = [run for run in runs if (run.header["attack"], run.label) == (row["attack"], row["defense"])]
        rates = [Detection.of(run.rounds).false_positive_rate or 0.0 for run in same]
        assert row["share"] == pytest.approx(fmean(rates), abs=1e-5)


def test_many_runs_are_shown_by_heat_maps_and_the_first_panels() -> None:
    attacks = tuple(f"attack {number}" for number in range(10))
    drawn = figures([make_run(attack=attack, rounds=70) for attack in attacks])
    assert len(drawn["scores"].panels) == 10
    assert "The first" not in drawn["scores"].caption
    runs = [
        make_run(defense, attack=attack, rounds=70) for attack in attacks for defense in ("cosdefense", "multi-krum")
    ]
    drawn = figures(runs)
    for name in ("scores", "rejections", "confusion"):
        assert len(drawn[name].panels) == MAX_PANELS
        assert f"The first {MAX_PANELS} of 20" in drawn[name].caption
    assert len(drawn["grid"].panels[0].rows) == 20


def test_pictures_in_two_dimensions() -> None:
    run = make_run("pca", rounds=70)
    places = tuple((float(i), float(-i)) for i in range(9))
    rounds = [replace(record, points={"PCAClusters": (*places, None)}) for record in run.rounds]
    (panel,) = figures([replace(run, rounds=tuple(rounds))])["points"].panels
    rows = drawn_rows(panel)
    assert len(rows) == MAX_DOTS
    assert rows[-1]["round"] == 69
    last = [row for row in rows if row["round"] == 69]
    assert [(row["x"], row["y"]) for row in last] == [(i, -i) for i in range(9)]  # the tenth was never judged
    truth = run.rounds[69].malicious
    assert truth is not None
    assert [row["who"] == "malicious" for row in last] == list(truth[:9])
    assert "points" not in figures([run])


def test_each_attack_has_its_chart_and_only_a_late_attack_its_rule() -> None:
    runs = make_runs(attacks=("inner-product", "none"))
    attacked, clean = figures(runs)["accuracy"].panels
    assert (attacked.title, clean.title) == ("under inner-product", "without an attack")
    assert [{"round": ATTACK_START}] in attacked.spec()["datasets"].values()
    assert len(clean.spec()["datasets"]) == 1
    late = [replace(run, rounds=run.rounds[ATTACK_START:]) for run in runs]
    assert all(len(panel.spec()["datasets"]) == 1 for panel in figures(late)["accuracy"].panels)


def test_a_federation_that_knows_no_truth_shows_what_it_has() -> None:
    drawn = figures([make_federation()])
    assert list(drawn) == ["accuracy", "scores", "rejections"]
    assert {row["who"] for row in drawn["scores"].panels[0].rows} == {"client"}
    assert not any("malicious" in figure.title + figure.caption for figure in drawn.values())
    assert drawn["scores"].png()


def test_rounds_before_the_defense_was_on_are_not_judged() -> None:
    run = make_run()
    off = replace(run, rounds=tuple(replace(record, defended=False) for record in run.rounds))
    assert set(figures([off])) == {"accuracy", "split"}


def test_a_run_without_rounds_has_no_figures() -> None:
    assert figures([RunRecord({"experiment": {}}, ())]) == {}


def test_pictures_are_large_enough_to_read() -> None:
    for figure in draw_figures(make_runs(seeds=2, attacks=("inner-product", "none"), rounds=80)):
        picture = figure.png()
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", picture[16:24])
        assert width >= 600, figure.name
        assert height >= 300, figure.name


def test_every_chart_says_in_words_what_it_shows() -> None:
    (panel,) = figures(make_runs())["accuracy"].panels
    ends = {row["defense"]: row["mean"] for row in panel.rows}
    for defense in DEFENSES:
        assert f"{defense} {ends[defense]:.1%}" in panel.description


def test_a_defense_keeps_its_look() -> None:
    alone = {name: list_looks([name])[0] for name in ("CosDefense", "factions", "none", "my rule")}
    together = {entry.label: entry for entry in list_looks(["other", *alone])}
    for name in ("CosDefense", "factions", "none"):
        assert together[name] == alone[name]
    late = list_looks([*(f"rule {number}" for number in range(15)), "CosDefense"])
    assert late[-1] == alone["CosDefense"]
    assert len({(entry.color, entry.dash) for entry in late}) == 16
    names = [f"rule {number}" for number in range(len(OTHERS))]
    assert len({(entry.color, entry.dash) for entry in list_looks([*names, *KNOWN])}) == len(OTHERS) + len(
        set(KNOWN.values())
    )


def test_rules_that_are_drawn_together_differ_in_color() -> None:
    """Bands have no pattern."""
    together = ("none", "Krum", "Clipping-Median", "CosDefense", "Factions", "two references", "opposed clusters")
    assert len({entry.color for entry in list_looks(together)}) == len(together)


def test_pictures_have_few_colors() -> None:
    (figure,) = [figure for figure in draw_figures(make_runs(rounds=10)) if figure.name == "accuracy"]
    picture = Image.open(BytesIO(figure.png()))
    assert picture.mode == "P"
    assert picture.width >= figure.scale * figure.width


def test_what_is_bad_has_another_color_than_what_is_good() -> None:
    runs = [
        make_run(defense, 0, attack, rounds=100) for defense in ("median", "cosdefense") for attack in ("none", "ipm")
    ]
    figure = next(figure for figure in draw_figures(runs) if figure.name == "grid")
    ranges = {
        panel.title: next(part["encoding"]["color"] for part in panel.spec()["layer"] if "color" in part["encoding"])
        for panel in figure.panels
    }
    colors = {title: tuple(color["scale"]["range"]) for title, color in ranges.items()}
    assert colors["Accuracy in the last evaluated round"] == colors["Malicious updates rejected"] == HEAT
    assert colors["Honest updates rejected"] == HARM
    assert "Red: the deeper, the worse" in figure.marks
    assert figure.own_colors  # in one picture, panels would share the first one's
    pixels = np.asarray(Image.open(BytesIO(figure.png())).convert("RGB")).astype(int)
    assert (pixels[..., 0] > pixels[..., 2] + 30).any()
