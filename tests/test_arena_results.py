"""The arena's committed results: tables come out of the committed records, and the document repeats them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosdefense.arena import Choice, plan
from cosdefense.arena_command import TITLE
from cosdefense.records import RunRecord, read_run
from cosdefense.report.arena import fields_of
from cosdefense.report.arena_tables import arena_tables, in_words
from cosdefense.report.table import markdown_of

RESULTS = Path(__file__).parents[1] / "docs" / "arena"
FOLDERS = sorted(path.parent for path in (RESULTS / "records").glob("*/*/records.jsonl"))
pytestmark = pytest.mark.skipif(not FOLDERS, reason="docs/arena holds no records")


@pytest.fixture(scope="module")
def committed() -> dict[Path, RunRecord]:
    return {folder: read_run(folder) for folder in FOLDERS}


@pytest.fixture(scope="module")
def runs(committed: dict[Path, RunRecord]) -> list[RunRecord]:
    """In the order of the plan that they belong to."""
    data = [run.header["experiment"]["data"] for run in committed.values()]
    n_seeds = 1 + max(run.header["seed"] for run in committed.values())
    planned = plan([d["dataset"] for d in data], [d["malicious"] for d in data], Choice(n_seeds=n_seeds))
    folders = [cell.experiment.folder(RESULTS / "records") for cell in planned.cells]
    return [committed[folder] for folder in folders if folder in committed]


def test_every_committed_run_belongs_to_the_plan_and_is_finished(
    committed: dict[Path, RunRecord], runs: list[RunRecord]
) -> None:
    """A setting that was changed since would have given the run another folder."""
    assert len(runs) == len(committed)
    for run in runs:
        assert run.summary is not None
        assert run.n_rounds == run.header["experiment"]["training"]["rounds"]
        assert {"commit", "command", "device", "versions"} <= run.header.keys()


def test_the_tables_are_those_of_the_records(runs: list[RunRecord]) -> None:
    fields = fields_of(runs)
    written = (RESULTS / "tables.md").read_text(encoding="utf-8")
    assert markdown_of(arena_tables(fields), TITLE, in_words(fields)) == written


def test_the_document_repeats_the_tables() -> None:
    known = (RESULTS / "tables.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in (RESULTS / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert len(lines) > 10
    assert [line for line in lines if line not in known] == []
