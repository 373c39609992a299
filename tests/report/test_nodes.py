"""The table of a real federation's nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cosdefense.report.node_table import make_node_table
from cosdefense.runs.records import RoundRecord, RunRecord

BIG = 2**64 - 1  # identities use all 64 bits


def federation(label: str, *reasons: tuple[str | None, ...]) -> RunRecord:
    rounds = [
        RoundRecord(round=number, clients=(7, BIG, 8)[: len(line)], weights=(1.0,) * len(line), reasons=line)
        for number, line in enumerate(reasons)
    ]
    return RunRecord({"experiment": {"name": "flower"}, "defense": label}, tuple(rounds))


def test_a_line_per_node_those_that_counted_least_first() -> None:
    found = make_node_table([federation("Krum", (None, "late", "defense"), (None, "late", None), (None, "error"))])
    assert found is not None
    assert found.headings == ("Node", "Not counted because", "Rounds asked", "Counted")
    assert found.rows == (
        (str(BIG), "late (2×), error (1×)", "3", "0"),
        ("8", "defense (1×)", "2", "1"),
        ("7", "–", "3", "3"),
    )


def test_named_nodes_have_their_names() -> None:
    run = federation("Krum", (None, "late"))
    named = replace(run, rounds=tuple(replace(record, names=("hospital A", None)) for record in run.rounds))
    found = make_node_table([named])
    assert found is not None
    assert [row[0] for row in found.rows] == [str(BIG), "hospital A (7)"]


def test_several_runs_stand_one_below_the_other() -> None:
    found = make_node_table([federation("Krum", (None,)), federation("none", ("late",))])
    assert found is not None
    assert found.parts
    assert [row[0] for row in found.rows] == ["Krum", "none"]


@pytest.mark.parametrize("runs", [[], [federation("simulated", ())]])
def test_a_simulation_has_no_such_table(runs: list[RunRecord]) -> None:
    assert make_node_table(runs) is None
