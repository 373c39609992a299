"""Pace by hand: lengths, memory, and what may not go wrong with it."""

from __future__ import annotations

import pytest
import torch

from cosdefense import Cohort, Layout
from cosdefense.filters import Pace
from doubles import restored, weights_only


def test_the_first_round_knows_its_median_only() -> None:
    # Lengths 1, 2, 3, 9: the median is 2.5, twice that 5. The fourth is rejected, the third shortened to 2.5.
    judgment, state = Pace()(weights_only([[1, 0], [0, 2], [0, 3], [9, 0]]), None)
    assert judgment.weights.tolist() == [True, True, True, False]
    assert judgment.updates is not None
    assert judgment.updates[:3].tolist() == [[1, 0], [0, 2], [0, 2.5]]
    assert judgment.scores.tolist() == [1, 2, 3, 9]
    assert state == 2  # the median of those who were accepted


def test_then_the_past_decides() -> None:
    # Usual is 1: five liars of length 3 out of seven are no reason to think otherwise.
    judgment, state = Pace()(weights_only([[1, 0], [0, 0.5], *[[3, 0]] * 5]), 1.0)
    assert judgment.weights.tolist() == [True, True] + [False] * 5
    assert state == pytest.approx(0.95 * 1 + 0.05 * 0.75)
    judgment, state = Pace(longest=4.0, decay=0.5)(weights_only([[1, 0], [0, 0.5], *[[3, 0]] * 5]), 1.0)
    assert judgment.weights.all()
    assert judgment.updates is not None
    assert judgment.updates[2:].tolist() == [[1, 0]] * 5
    assert state == pytest.approx(0.5 * 1 + 0.5 * 2)  # their median is 3, but it counts as at most twice the usual


def test_where_all_are_too_long_the_world_has_changed() -> None:
    rows = weights_only([[30, 0], [0, 40], [50, 0]])
    judgment, state = Pace()(rows, 1.0)
    assert judgment.weights.all()
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[1, 0], [0, 1], [1, 0]]
    for _ in range(200):
        _, state = Pace()(rows, state)
    assert state == pytest.approx(40, rel=0.05)  # and is known again after a while


def test_a_round_without_any_movement_is_forgotten() -> None:
    _, state = Pace()(weights_only([[0, 0], [0, 0]]), None)
    judgment, state = Pace()(weights_only([[3, 0], [0, 3]]), state)
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[3, 0], [0, 3]]
    assert state == 3


def test_buffers_shrink_along_but_have_no_length() -> None:
    layout = Layout((("w", (1,)), ("running_mean", (1,))), "w", 1)
    cohort = Cohort.of(torch.tensor([[4.0, 100.0]]), torch.zeros(2), layout)
    judgment, _ = Pace(longest=9.0)(cohort, 2.0)
    assert judgment.scores.tolist() == [4]
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[2, 50]]


def test_what_it_remembers_can_be_saved() -> None:
    part = Pace()
    _, state = part(weights_only([[1, 0], [0, 2]]), part.init())
    assert restored(state, part) == state


@pytest.mark.parametrize("longest", [0.5, float("nan"), float("inf")])
def test_nonsense_is_refused(longest: float) -> None:
    with pytest.raises(ValueError, match=r"Pace.longest must be at least 1 and finite"):
        Pace(longest)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_is_a_share(decay: float) -> None:
    with pytest.raises(ValueError, match=r"Pace.decay must be in \[0, 1\)"):
        Pace(decay=decay)


def test_huge_rows_stay_numbers() -> None:
    judgment, state = Pace()(weights_only([[1e30, 0], [0, 3e38], [1, 1]]), 1.0)
    assert judgment.updates is not None
    assert torch.isfinite(judgment.updates).all()
    assert judgment.weights.tolist() == [False, False, True]
    assert state == pytest.approx(0.95 + 0.05 * 2**0.5)
