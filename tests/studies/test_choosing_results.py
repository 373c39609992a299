"""docs/choosing.md: its tables are those of the published records, and the records are those of the experiments."""

from __future__ import annotations

import re
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from cosdefense.runs.experiment_file import load
from cosdefense.runs.packed_records import read_pack
from cosdefense.runs.records import RunRecord

pytestmark = pytest.mark.slow  # reads all published records

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> Any:
    spec = util.spec_from_file_location("choosing_tables", ROOT / "experiments" / "choosing" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runs(script: Any) -> list[RunRecord]:
    return list(read_pack(script.RECORDS))


def test_the_records_are_those_of_the_experiments(script: Any, runs: list[RunRecord]) -> None:
    cells = [cell for name in script.COLUMNS for cell in load(script.HERE / f"{name}.toml").cells()]
    planned = [(cell.name, cell.attacks[0].label, cell.defenses[0].label, cell.seeds[0]) for cell in cells]
    assert [script.identify(run) for run in runs] == planned
    assert {path.stem for path in script.HERE.glob("*.toml")} == set(script.COLUMNS)


def test_the_tables_are_those_of_the_records(script: Any, runs: list[RunRecord]) -> None:
    assert script.replace_tables(PAGE, runs) == PAGE


def test_runs_that_are_not_there_are_taken_from_the_records(script: Any, tmp_path: Path, runs: list[RunRecord]) -> None:
    experiment = load(script.HERE / "hospitals.toml")
    assert script.collect_runs([experiment], tmp_path) == runs[: len(list(experiment.cells()))]


def test_a_page_without_a_place_for_a_table_is_refused(script: Any, runs: list[RunRecord]) -> None:
    with pytest.raises(ValueError, match="needs one place for the table phones, got 0"):
        script.replace_tables(PAGE.replace("<!-- table: phones -->", ""), runs)


def read_table(name: str) -> dict[str, dict[str, str]]:
    """By defense and column, as the page shows it."""
    rows = re.search(rf"<!-- table: {name} -->\n\n((?:\|.*\n)+)", PAGE)
    assert rows is not None
    head, _, *lines = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in rows[1].splitlines())
    return {line[0]: dict(zip(head[1:], line[1:], strict=True)) for line in lines}


def list_attacked(name: str, defense: str) -> list[float]:
    row = read_table(name)[defense]
    columns = ("no attack", "honest rejected", "most-rejected client", "worst-served client")
    return [float(value) for column, value in row.items() if column not in columns]


def test_what_the_page_says_about_few_clients() -> None:
    table = read_table("hospitals")
    assert float(table["FoolsGold"]["honest rejected"]) == 80
    assert float(table["FoolsGold"]["no attack"]) < 60
    for rule in ("Multi-Krum", "PCA clustering"):
        assert table[rule]["most-rejected client"] == "100 (Oncology)"
    for rule in ("median", "trimmed mean"):
        assert min(list_attacked("hospitals", rule)) > float(table[rule]["no attack"]) - 2.05


def test_what_the_page_says_about_many_clients() -> None:
    assert min(list_attacked("factories", "clipping to the median norm")) > 80
    assert max(float(read_table("factories")["median"][attack]) for attack in ("inner product", "Min-Max")) < 65
    for rule in ("trimmed mean", "Multi-Krum"):
        assert float(read_table("phones")[rule]["MPAF"]) < 12
    for rule in ("clipping to the median norm", "median"):
        assert min(list_attacked("phones", rule)) > 88


def test_what_the_page_says_about_a_majority_of_one_person() -> None:
    assert max(list_attacked("identities", "Factions")) < 16
    former = read_table("identities")["opposed clusters"]
    assert min(float(former[attack]) for attack in ("inner product", "MPAF")) > 80
    assert max(float(former[attack]) for attack in ("sign flip", "label flip")) < 40
