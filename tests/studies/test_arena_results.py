"""The arena's published results: tables come out of the packed records, and the document repeats them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from cosdefense.cli.arena import TITLE
from cosdefense.report.table import tables_to_markdown
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.packed_records import PACK, read_pack
from cosdefense.runs.records import RunRecord
from cosdefense.studies.arena.defense_results import list_settings
from cosdefense.studies.arena.plan import Choice, plan
from cosdefense.studies.arena.tables import describe_arena, make_arena_tables
from cosdefense.studies.study import read_planned_runs

pytestmark = pytest.mark.slow  # reads all published records

RESULTS = Path(__file__).parents[2] / "docs" / "arena"


@pytest.fixture(scope="module")
def planned() -> tuple[Experiment, ...]:
    return plan(["mnist", "fashion-mnist", "cifar-10"], [0.3], Choice()).runs


@pytest.fixture(scope="module")
def runs(planned: tuple[Experiment, ...]) -> list[RunRecord]:
    """In the order of the plan that they belong to."""
    return read_planned_runs(planned, RESULTS)


def test_every_published_run_belongs_to_the_plan_and_is_finished(runs: list[RunRecord]) -> None:
    assert len(runs) == len(list(read_pack(RESULTS / PACK))) == 825
    for run in runs:
        assert run.summary is not None
        assert run.n_rounds == run.header["experiment"]["training"]["rounds"]
        assert {"commit", "command", "device", "versions"} <= run.header.keys()


def test_every_published_pair_is_one_of_the_plan(runs: list[RunRecord], planned: tuple[Experiment, ...]) -> None:
    """The parts have today's options, so that each pair could be run again. What happens to buffers may differ."""
    parts = {(run.name, run.attacks[0].label, run.defenses[0].label): run for run in planned}
    for own in (from_table(run.header["experiment"]) for run in runs):
        (attack,), (defense,) = own.attacks, own.defenses
        today = parts[own.name, attack.label, defense.label]
        assert (today.data, today.model, today.training) == (own.data, own.model, own.training)
        assert today.attacks[0].part == attack.part
        assert replace(today.defenses[0].part, buffers=defense.part.buffers) == defense.part


def test_the_tables_are_those_of_the_records(runs: list[RunRecord]) -> None:
    settings = list_settings(runs)
    written = (RESULTS / "tables.md").read_text(encoding="utf-8")
    assert tables_to_markdown(make_arena_tables(settings), TITLE, describe_arena(settings)) == written


def test_the_document_repeats_the_tables() -> None:
    known = (RESULTS / "tables.md").read_text(encoding="utf-8").splitlines()
    _, _, results = (RESULTS / "README.md").read_text(encoding="utf-8").partition("\n## Results of other rules")
    lines = [line for line in results.splitlines() if line.startswith("|")]
    assert len(lines) > 10
    assert [line for line in lines if line not in known] == []


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist"])
def test_what_is_said_of_opposed_clusters(dataset: str, runs: list[RunRecord]) -> None:
    """Three seeds of everything; at most five points lost, two without an attack; under the adaptive attack no other
    defense without an oracle loses less."""
    ends = defaultdict(list)
    for run in runs:
        if run.header["experiment"]["data"]["dataset"] == dataset:
            ends[run.header["defense"], run.header["attack"]].append(run.summary["tail_accuracy"])  # type: ignore[index]
    assert {len(values) for values in ends.values()} == {3}
    defenses, attacks = ({pair[i] for pair in ends} for i in (0, 1))
    assert len(ends) == len(defenses) * len(attacks)
    clean = fmean(ends["none", "none"])
    lost = {pair: 100 * (clean - fmean(values)) for pair, values in ends.items()}
    assert max(lost["opposed clusters", attack] for attack in attacks - {"adaptive"}) <= 5
    assert lost["opposed clusters", "none"] <= 2
    with_oracle = {"Krum", "trimmed mean", "FLTrust"}
    assert min(defenses - with_oracle, key=lambda defense: lost[defense, "adaptive"]) == "opposed clusters"
