"""Small grids as tables for documents, and the pack that they are made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("altair", reason='needs the extra "report"')

from arena_runs import make, pair
from commands import called
from cosdefense.report import write_report
from cosdefense.report.groups import group_runs
from cosdefense.report.pair_tables import make_pair_tables
from cosdefense.runs.packed_records import PACK, find_runs, write_pack
from cosdefense.runs.records import RunRecord


def small_grid() -> list[RunRecord]:
    return [
        *pair("plain", "none", (0.90, 0.94)),
        *pair("plain", "ipm", (0.10, 0.10)),
        *pair("CosDefense", "none", (0.93, 0.95), honest_rejected=(0.40, 0.44)),
        *pair("CosDefense", "ipm", (0.85, 0.87), honest_rejected=(0.30, 0.34), malicious_rejected=0.7, worst_class=0.2),
    ]


def test_defenses_stand_down_and_attacks_across() -> None:
    tables = make_pair_tables(group_runs(small_grid()))
    assert list(tables) == ["tail_accuracy-0", "worst_class-0", "malicious_rejected-0", "honest_rejected-0"]
    accuracy = tables["tail_accuracy-0"]
    assert accuracy.headings == ("Defense", "none", "ipm")
    assert accuracy.rows == (("plain", "92.0 ± 2.8%", "10.0 ± 0.0%"), ("CosDefense", "94.0 ± 1.4%", "86.0 ± 1.4%"))
    assert tables["honest_rejected-0"].rows[1] == ("CosDefense", "42.0 ± 2.8%", "32.0 ± 2.8%")
    assert tables["worst_class-0"].rows[1] == ("CosDefense", "–", "20.0 ± 0.0%")


def test_a_model_that_is_not_a_number_counts_as_zero() -> None:
    runs = [*pair("plain", "none", (0.9, None)), *pair("plain", "ipm", (float("nan"), 0.2))]
    assert make_pair_tables(group_runs(runs))["tail_accuracy-0"].rows == (("plain", "45.0 ± 63.6%", "10.0 ± 14.1%"),)


def test_experiments_have_tables_of_their_own_and_a_single_attack_has_none() -> None:
    other = [make("median", attack, 0, 0.5, share=0.4) for attack in ("none", "ipm")]
    tables = make_pair_tables(group_runs([*small_grid(), *other]))
    titles = [table.title for table in tables.values() if table.name == "tail_accuracy"]
    assert len(titles) == 2
    assert all("arena-mnist" in title for title in titles)
    assert make_pair_tables(group_runs(pair("plain", "ipm", (0.1, 0.2)))) == {}


def test_a_published_report_can_be_made_again_from_its_pack(tmp_path: Path) -> None:
    unfinished = replace(make("median", "ipm", 0, 0.5), summary=None)
    write_pack(tmp_path / "runs" / PACK, [*small_grid(), unfinished])
    done = called("report", "runs", "--publish", "docs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(find_runs(tmp_path / "docs"))) == 8
    tables = (tmp_path / "docs" / "tables.md").read_bytes()
    assert "| CosDefense | 94.0 ± 1.4% | 86.0 ± 1.4% |".encode() in tables
    again = called("report", "docs", "--out", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "tables.md").read_bytes() == tables


def test_nothing_finished_is_an_error(tmp_path: Path) -> None:
    write_pack(tmp_path / PACK, [replace(make("median", "ipm", 0, 0.5), summary=None)])
    done = called("report", PACK, "--publish", "docs", cwd=tmp_path)
    assert done.returncode == 2
    assert "no run is finished" in done.stderr


def test_a_single_run_has_no_tables(tmp_path: Path) -> None:
    assert write_report([make("median", "ipm", 0, 0.5)], tmp_path, "t").tables is None
