"""The published results: tables come out of the packed records, and the documents repeat them."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from cosdefense.report.table import tables_to_markdown
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.packed_records import PACK, read_pack
from cosdefense.runs.records import RunRecord
from cosdefense.studies.paper.drift import DriftRun, read_drift
from cosdefense.studies.paper.plan import plan
from cosdefense.studies.paper.tables import make_paper_tables
from cosdefense.studies.paper.views import select_paper_runs
from cosdefense.studies.study import experiments_folder, read_planned_runs

pytestmark = pytest.mark.slow  # reads all published records

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def runs() -> list[RunRecord]:
    """In the order of the plan that they belong to."""
    return read_planned_runs(plan(["all"]).runs, RESULTS)


@pytest.fixture(scope="module")
def drift() -> list[DriftRun]:
    return read_drift(plan(["all"]).drift, RESULTS)


def test_every_published_run_belongs_to_the_plan_and_is_finished(runs: list[RunRecord]) -> None:
    assert len(runs) == len(list(read_pack(RESULTS / PACK))) == 195
    for run in runs:
        assert run.summary is not None
        assert run.n_rounds == run.header["experiment"]["training"]["rounds"]
        assert {"commit", "command", "device", "versions"} <= run.header.keys()


def test_every_published_header_is_an_experiment_of_the_plan(runs: list[RunRecord]) -> None:
    """Today's names and options: each could be run again, and would be the same run."""
    published = [from_table(run.header["experiment"], experiments_folder("paper")) for run in runs]
    assert published == list(plan(["all"]).runs)


def test_figure_1_has_its_runs(drift: list[DriftRun]) -> None:
    assert [from_table(run.header["experiment"]) for run in drift] == list(plan(["figure1"]).drift)
    assert [run.header["seed"] for run in drift] == [0, 1, 2, 3, 4]
    for run in drift:
        assert [measurement.iteration for measurement in run.measurements] == list(range(20, 1001, 20))
        assert {"commit", "command", "device", "versions"} <= run.header.keys()


def test_the_tables_are_those_of_the_records(runs: list[RunRecord], drift: list[DriftRun]) -> None:
    written = (RESULTS / "tables.md").read_text(encoding="utf-8")
    title = written.splitlines()[0].removeprefix("# ")
    assert tables_to_markdown(make_paper_tables(select_paper_runs(runs, drift)), title) == written


def test_the_page_repeats_the_tables() -> None:
    known = (RESULTS / "tables.md").read_text(encoding="utf-8").splitlines()
    page, _, _ = (RESULTS / "README.md").read_text(encoding="utf-8").partition("## Claims in small")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) > 10
    assert [line for line in lines if line not in known] == []


def ends_of(runs: list[RunRecord], name: str, key: str) -> dict[str, list[float]]:
    """Final accuracies under attack, by defense."""
    ends: dict[str, list[float]] = {}
    for run in runs:
        if run.experiment == name and run.header["attack"] != "none" and run.summary:
            ends.setdefault(run.label, []).append(run.summary[key])
    return ends


@pytest.mark.parametrize(
    ("name", "key", "n_seeds", "center"),
    [
        ("paper-mnist", "final_accuracy", 5, 0.83),
        ("paper-fashion-mnist", "final_accuracy", 5, 0.67),
        ("paper-cifar-10", "final_accuracy", 2, 0.50),
        ("paper-cifar-10", "batch_statistics_accuracy", 2, 0.50),
    ],
)
def test_what_an_independent_run_had_found(
    runs: list[RunRecord], name: str, key: str, n_seeds: int, center: float
) -> None:
    ends = ends_of(runs, name, key)
    assert all(len(seeds) == n_seeds for seeds in ends.values())
    assert abs(fmean(ends["CosDefense"]) - center) < 0.06
    for defense in ("none", "Krum"):
        assert all(end < 0.13 for end in ends[defense])
    assert fmean(ends["Clipping-Median"]) < 0.4


def test_the_claims_in_small_come_from_their_records() -> None:
    claims = RESULTS.parent / "claims"
    planned = plan(["claims"], n_seeds=3, quick=True).runs
    found = read_planned_runs(planned, claims)
    assert [from_table(run.header["experiment"], experiments_folder("paper")) for run in found] == list(planned)
    assert len(list(read_pack(claims / PACK))) == len(planned) == 63
    written = (claims / "tables.md").read_text(encoding="utf-8")
    title = written.splitlines()[0].removeprefix("# ")
    assert tables_to_markdown(make_paper_tables(select_paper_runs(found)), title) == written
    _, _, section = (RESULTS / "README.md").read_text(encoding="utf-8").partition("## Claims in small")
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert len(lines) == 27
    assert [line for line in lines if line not in written.splitlines()] == []
