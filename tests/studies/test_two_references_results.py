"""docs/factions.md: the table of two references is that of the published records."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from cosdefense.runs.experiment_file import load
from cosdefense.runs.packed_records import read_pack

pytestmark = pytest.mark.slow  # reads published records

DOCS = Path(__file__).parents[2] / "docs"
LAST = 4  # evaluations in the last tenth of 200 rounds


def test_the_table_is_that_of_the_records() -> None:
    runs = list(read_pack(DOCS / "two-references" / "records.jsonl.gz"))
    cells = load(DOCS.parent / "experiments" / "two-references.toml").cells()
    planned = {(cell.attacks[0].label, cell.defenses[0].label) for cell in cells}
    measured = {}
    for run in runs:
        accuracies = [record.accuracy for record in run.rounds if record.accuracy is not None]
        measured[run.header["attack"], run.header["defense"]] = f"{100 * fmean(accuracies[-LAST:]):.1f}"
    assert set(measured) == planned
    page = (DOCS / "factions.md").read_text(encoding="utf-8")
    table = page.split("| attack | no defense | Factions | two references |\n")[1].split("\n\n")[0].splitlines()[1:]
    shown = {}
    for line in table:
        attack, *values = (cell.strip() for cell in line.strip("|").split("|"))
        for defense, value in zip(("none", "Factions", "two references"), values, strict=True):
            shown[attack, defense] = value
    assert shown == measured
