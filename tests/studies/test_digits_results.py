"""The published grids on digits: complete, and their tables are those of the packed records."""

from __future__ import annotations

from itertools import dropwhile, takewhile
from pathlib import Path

import pytest

from cosdefense.report.groups import group_runs
from cosdefense.report.large_grids import ONLY_UPDATES, list_large_grids, make_grid_tables
from cosdefense.report.table import tables_to_markdown
from cosdefense.runs.experiment_file import from_table, load
from cosdefense.runs.packed_records import PACK, read_pack

pytestmark = pytest.mark.slow  # reads all published records

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["grid", "backdoors"])
def test_published_tables_are_those_of_the_records_and_of_the_file(name: str) -> None:
    folder = ROOT / "docs" / "digits" / name
    runs = list(read_pack(folder / PACK))
    experiment = load(ROOT / "experiments" / f"digits-{name}.toml")
    labels = [(cell.attacks[0].label, cell.defenses[0].label, cell.seeds[0]) for cell in experiment.cells()]
    assert [(run.header["attack"], run.header["defense"], run.header["seed"]) for run in runs] == labels
    cells = {cell.folder(Path()) for cell in experiment.cells()}
    assert all(from_table(run.header["experiment"], experiment.source).folder(Path()) in cells for run in runs[::50])
    grids = list_large_grids(group_runs(runs))
    text = tables_to_markdown(make_grid_tables(grids), f"digits-{name}")
    assert (folder / "tables.md").read_text(encoding="utf-8") == text
    if name == "grid":  # as the document says
        (grid,) = grids
        best = dict(grid.sides())[ONLY_UPDATES][:3]
        assert [(rule, grid.text(grid.worst(rule)[0], 1)) for rule in best] == [
            ("Factions", "94.6"),
            ("two references", "93.5"),
            ("opposed clusters", "92.4"),
        ]


def test_the_readme_repeats_the_table_of_the_grid() -> None:
    grid = _cells((ROOT / "docs" / "digits" / "grid" / "tables.md").read_text(encoding="utf-8"), "## ", 1)
    repeated = _cells((ROOT / "README.md").read_text(encoding="utf-8"), "## Beyond the paper", 0)
    assert len(repeated) == 55
    for (attack, defense), figure in repeated.items():
        assert f"{grid[defense, attack]} %" == figure, (attack, defense)


def _cells(text: str, heading: str, column: int) -> dict[tuple[str, str], str]:
    """Of the first table after the heading: (row, column) → figure. The rows' names are in that column."""
    after = text[text.index(heading) :].splitlines()
    lines = list(takewhile(lambda line: line[:1] == "|", dropwhile(lambda line: line[:1] != "|", after)))
    head, _, *rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return {(row[column], head[i]): row[i] for row in rows for i in range(column + 1, len(head))}
