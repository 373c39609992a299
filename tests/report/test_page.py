from __future__ import annotations

import csv
import json
import re
import sys
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

pytest.importorskip("altair", reason='needs the extra "report"')
pytest.importorskip("vl_convert", reason='needs the extra "report"')

from cosdefense.catalog.extras import MissingExtra
from cosdefense.report import Report, write_report
from cosdefense.report.experiment_settings import experiments, flat
from cosdefense.report.figures import draw_figures
from cosdefense.report.groups import group_runs
from cosdefense.report.page import render_report
from cosdefense.report.results import describe_results, explain_columns, make_table, to_csv, to_json
from cosdefense.runs.metrics import final_accuracy, summarize
from cosdefense.runs.records import RoundRecord, RunRecord
from synthetic_runs import DEFENSES, make_federation, make_run, make_runs


class Page(HTMLParser):
    """The elements of a page, in order, and the text of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
        self.in_cell = tag in ("th", "td")

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = False

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.rows[-1][-1] += data

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    def list_tags(self, section: str) -> list[str]:
        """The elements of one section: others have tables of their own."""
        starts = [index for index, (tag, _) in enumerate(self.elements) if tag == "section"]
        (start,) = [index for index in starts if self.elements[index][1]["aria-labelledby"] == section]
        end = next((index for index in starts if index > start), len(self.elements))
        return [tag for tag, _ in self.elements[start:end]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return write_report(make_runs(seeds=2), tmp_path_factory.mktemp("deep") / "er", "A title")


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return report.page.read_text(encoding="utf-8")


def test_page_and_figures_lie_side_by_side(report: Report) -> None:
    names = ["accuracy.png", "scores.png", "rejections.png", "confusion.png", "split.png"]
    assert [path.name for path in report.figures] == names
    assert sorted(path.name for path in report.page.parent.iterdir()) == sorted([*names, "report.html"])


def test_nothing_is_loaded_from_anywhere(text: str) -> None:
    page = Page(text)
    links = [value for _, attributes in page.elements for key in ("src", "href") if (value := attributes.get(key))]
    assert links
    assert all(link.startswith("data:") for link in links)
    assert not page.all("link", "iframe", "object", "embed", "base", "form")
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_allows_exactly_the_pages_own_script(text: str) -> None:
    (policy,) = [meta["content"] or "" for meta in Page(text).all("meta") if "http-equiv" in meta]
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"


def test_headings_descend_one_step_at_a_time_and_charts_have_a_voice(text: str) -> None:
    page = Page(text)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    pictures = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert len(pictures) == sum(attributes.get("class") == "chart" for _, attributes in page.elements) == 8
    assert all(len(picture["aria-label"] or "") > 40 for picture in pictures)
    assert all(heading.get("scope") in ("col", "row", "rowgroup") for heading in page.all("th"))


def test_the_table_shows_mean_and_deviation_over_seeds(text: str) -> None:
    headings, *rows = Page(text).rows
    assert headings[:5] == ["Defense", "Attack", "Seeds", "Final accuracy", "Last tenth"]
    assert [row[0] for row in rows[:4]] == list(DEFENSES)
    ends = [100 * (final_accuracy(make_run("cosdefense", seed).rounds) or 0.0) for seed in range(2)]
    assert rows[3][:4] == ["cosdefense", "inner-product", "0, 1", f"{fmean(ends):.1f} ± {stdev(ends):.1f}%"]


def test_the_table_of_one_run_is_its_summary() -> None:
    run = make_run("multi-krum")
    summary = summarize(run.rounds)
    headings, (row,) = make_table(group_runs([run]))
    cells = dict(zip(headings, row, strict=True))
    assert cells == {
        "Defense": "multi-krum",
        "Attack": "inner-product",
        "Seeds": "0",
        "Final accuracy": f"{summary['final_accuracy']:.1%}",
        "Last tenth": f"{summary['tail_accuracy']:.1%}",
        "Malicious rejected": f"{summary['malicious_rejected']:.1%}",
        "Honest rejected": f"{summary['honest_rejected']:.1%}",
        "Precision": f"{summary['precision']:.1%}",
        "Clean-round false positives": f"{summary['clean_honest_rejected']:.1%}",
        "Most-rejected honest client": f"{summary['most_rejected_honest']:.1%}",
        "AUC": f"{summary['area_under_roc']['multi-krum']:.3f}",
        "Rounds skipped": "0",
        "Seconds": "22.0",
    }


def test_columns_without_numbers_are_left_out() -> None:
    headings, _ = make_table(group_runs([make_federation()]))
    assert headings == ["Defense", "Final accuracy", "Last tenth", "Rounds skipped"]
    assert "malicious" not in explain_columns(group_runs([make_federation()]))


def test_the_words_name_the_best_and_the_worst() -> None:
    runs = make_runs()
    best, worst = (summarize(run.rounds) for run in (runs[3], runs[0]))
    assert describe_results(group_runs(runs)) == (
        "4 runs of 4 defenses, up to 200 rounds each. "
        f"Under inner-product (from round 60 on), cosdefense ended highest, at {best['final_accuracy']:.1%} accuracy. "
        f"It rejected {best['malicious_rejected']:.1%} of the malicious and "
        f"{best['honest_rejected']:.1%} of the honest updates. "
        f"Lowest was fedavg, at {worst['final_accuracy']:.1%}."
    )


def test_the_words_admit_what_is_missing() -> None:
    run = make_run("fedavg", attack="none")
    silent = replace(run, rounds=tuple(replace(record, accuracy=None) for record in run.rounds), summary=None)
    assert describe_results(group_runs([silent])) == (
        "1 run of 1 defense, up to 200 rounds each. 1 run not finished: the numbers so far. "
        "Without an attack, no round was evaluated."
    )
    rounds = (*run.rounds[:3], RoundRecord(3, (), (), lost=True), *run.rounds[4:])
    damaged = describe_results(group_runs([replace(run, rounds=rounds, summary=None)]))
    assert "The records of 1 round were damaged and are lost." in damaged


def test_downloads_hold_every_run(text: str) -> None:
    links = {link["download"]: link["href"] or "" for link in Page(text).all("a")}
    lines = json.loads(b64decode(links["results.json"].split(",")[1]))
    rows = list(csv.DictReader(StringIO(b64decode(links["results.csv"].split(",")[1]).decode())))
    assert len(lines) == len(rows) == 8
    for line, row, run in zip(lines, rows, make_runs(seeds=2), strict=True):
        assert (line["defense"], line["seed"]) == (row["defense"], int(row["seed"])) == (run.label, run.header["seed"])
        assert line["final_accuracy"] == float(row["final_accuracy"]) == final_accuracy(run.rounds)
        assert line["confusion.honest_rejected"] == summarize(run.rounds)["confusion"]["honest_rejected"]


def test_a_spreadsheet_finds_no_formula_in_the_download() -> None:
    groups = group_runs([make_run('=HYPERLINK("http://evil")')])
    assert "'=HYPERLINK" in to_csv(groups)
    assert json.loads(to_json(groups))[0]["defense"].startswith("=HYPERLINK")


def test_settings_are_flattened_to_lines() -> None:
    nested = {
        "name": "x",
        "data": {"q": 0.5, "sizes": [1, 2], "tags": []},
        "parts": [{"name": "clip", "max": {"norm": 2.0}}],
    }
    assert flat(nested) == [
        ("name", "x"),
        ("data.q", 0.5),
        ("data.sizes", "1, 2"),
        ("data.tags", "none"),
        ("parts.1", "name = clip, max.norm = 2.0"),
    ]


def test_settings_and_versions_stand_on_the_page(text: str) -> None:
    rows = Page(text).rows
    for row in (["partition.q", "0.5"], ["attack_start", "60"], ["torch", "2.13.0"], ["device", "cpu"]):
        assert rows.count(row) == 1
    assert rows.count(["seeds", "0, 1"]) == 1
    for number, defense in enumerate(DEFENSES, 1):
        assert [f"{number}", f"label = {defense}, name = {defense}"] in rows


def test_different_experiments_are_distinguished() -> None:
    runs = [*make_runs(seeds=2, rounds=2), make_run(rounds=3)]
    long, longer = experiments(runs)
    assert (long["seeds"], longer["seeds"]) == ([0, 1], [0])
    assert len(long["defenses"]) == 4
    assert runs[0].header["experiment"]["seeds"] == [0]  # untouched


def test_labels_are_text_wherever_they_appear(tmp_path: Path) -> None:
    label = "</script><b id='x\">&amp;"
    run = make_run(label, attack=label, rounds=80, device=label, versions={label: label})
    report = write_report([replace(run, header={**run.header, "experiment": {label: {label: label}}})], tmp_path, label)
    text = report.page.read_text(encoding="utf-8")
    page = Page(text)
    assert not page.all("b")
    assert len(page.all("script")) == 2
    assert [label, label] in page.rows
    charts = json.loads(text.split('id="charts">')[1].split("</script>")[0])
    assert charts["specs"]["chart-accuracy-0"]["datasets"]["rows"][0]["defense"] == label


def test_the_same_runs_give_the_same_page() -> None:
    pages = [render_report(runs, draw_figures(runs), "t") for runs in (make_runs(rounds=20), make_runs(rounds=20))]
    assert pages[0] == pages[1]


def test_an_empty_run_still_has_a_page(tmp_path: Path) -> None:
    report = write_report([RunRecord({}, ())], tmp_path, "Nothing yet")
    assert report.figures == ()
    assert "No round was evaluated" in report.page.read_text(encoding="utf-8")


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run, got none"):
        write_report([], tmp_path, "t")


@pytest.mark.parametrize("library", ["altair", "vl_convert", "PIL", "jinja2"])
def test_without_a_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("cosdefense.report.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"{library} was not found: .* pip install .*'\.\[report\]'"):
        write_report([make_run(rounds=2)], tmp_path, "t")


@pytest.mark.slow
def test_a_large_grid_is_described_by_its_worst_cases_and_its_table_is_folded() -> None:
    attacks = tuple(f"attack {number}" for number in range(7))
    runs = make_runs(attacks=attacks, rounds=100)
    worst = {
        defense: min(final_accuracy(run.rounds) or 0.0 for run in runs if run.label == defense) for defense in DEFENSES
    }
    best, last = max(worst, key=lambda name: worst[name]), min(worst, key=lambda name: worst[name])
    text = describe_results(group_runs(runs))
    assert f"In its worst case {best} ended at {worst[best]:.1%} accuracy (under attack" in text
    assert f"Lowest was {last}, at {worst[last]:.1%}" in text
    page = Page(render_report(runs, draw_figures(runs), "large"))
    assert "details" in page.list_tags("results")
    few = make_runs(attacks=attacks[:2], rounds=100)
    tags = Page(render_report(few, draw_figures(few), "small")).list_tags("results")
    assert "table" in tags
    assert "details" not in tags


def test_heat_maps_scroll_on_a_narrow_page() -> None:
    runs = make_runs(attacks=("one", "two", "three"), rounds=100)
    charts = {
        attributes["id"]: attributes.get("style")
        for _, attributes in Page(render_report(runs, draw_figures(runs), "grid")).elements
        if attributes.get("class") == "chart"
    }
    assert charts["chart-grid-0"] == "min-width: 318px"
    assert charts["chart-accuracy-0"] is None
