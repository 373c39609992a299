"""The authors' Krum, which is told the truth: their formula, and only the simulator tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean
from cosdefense.attacks import InnerProduct
from cosdefense.experiment import load
from cosdefense.simulation import simulate
from cosdefense.testing import check_filter
from worlds import digits_world

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> type:
    monkeypatch.syspath_prepend(str(EXPERIMENTS / "paper"))
    from authors import OracleKrum

    return OracleKrum


def judged(rule: object, column: list[float]) -> tuple[list[float], list[bool]]:
    cohort = Cohort.of(torch.tensor(column)[:, None], torch.zeros(1), Layout((("w", (1,)),), "w", 1))
    judgment, _ = rule(cohort, None)  # type: ignore[operator]
    return judgment.scores.tolist(), judgment.weights.tolist()


def test_plain_distances_to_the_n_minus_f_minus_3_nearest(oracle: type) -> None:
    # n = 6; client 5 lies, so f = 1: two neighbours. On a line at 0, 1, 3, 6, 10, 100.
    scores, accepted = judged(oracle((5,)), [0.0, 1.0, 3.0, 6.0, 10.0, 100.0])
    assert scores == [1 + 3, 1 + 2, 2 + 3, 3 + 4, 4 + 7, 90 + 94]
    assert accepted == [False, True, False, False, False, False]


def test_where_no_neighbour_is_left_nobody_is_preferred(oracle: type) -> None:
    """Their code then picks the first row, which is always an honest one."""
    assert judged(oracle((1, 2, 3)), [0.0, 1.0, 3.0, 6.0]) == ([0, 0, 0, 0], [True] * 4)


def test_the_contract(oracle: type) -> None:
    check_filter(oracle())


def test_the_simulator_tells_it(oracle: type) -> None:
    told: list[tuple[int, ...]] = []

    class Listening(oracle):  # type: ignore[misc]
        def __call__(self, cohort: Cohort, state: None) -> object:
            told.append(self.malicious)
            return super().__call__(cohort, state)

    world = digits_world()
    list(simulate(world, InnerProduct(), Defense((Listening(),), Mean()), rounds=1, sampled=10, batch=4, seed=0))
    assert told == [tuple(world.malicious.nonzero().flatten().tolist())]


def test_a_file_reaches_it_by_name(oracle: type) -> None:
    experiment = load(EXPERIMENTS / "paper" / "krum-variants.toml")
    assert experiment.defenses[1].part == Defense((oracle(),), Mean())
