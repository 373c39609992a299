"""NormLimit by hand: lengths, memory, and what may not go wrong with it."""

from __future__ import annotations

import pytest
import torch

from cosdefense import Cohort, Layout
from cosdefense.filters import NormLimit
from doubles import save_and_load, weights_only


def test_the_first_round_knows_its_median_only() -> None:
    # Lengths 1, 2, 3, 9: the median is 2.5, twice that 5. The fourth is rejected, the third shortened to 2.5.
    judgment, state = NormLimit()(weights_only([[1, 0], [0, 2], [0, 3], [9, 0]]), None)
    assert judgment.weights.tolist() == [True, True, True, False]
    assert judgment.updates is not None
    assert judgment.updates[:3].tolist() == [[1, 0], [0, 2], [0, 2.5]]
    assert judgment.scores.tolist() == [1, 2, 3, 9]
    assert state == 2  # the median of those who were accepted


def test_then_the_past_decides() -> None:
    # Usual is 1: four liars of length 3 out of seven are no reason to think otherwise.
    rows = weights_only([[1, 0], [0, 0.5], [0, 0.5], *[[3, 0]] * 4])
    judgment, state = NormLimit()(rows, 1.0)
    assert judgment.weights.tolist() == [True] * 3 + [False] * 4
    assert state == pytest.approx(0.95 * 1 + 0.05 * 0.5)
    judgment, state = NormLimit(max_ratio=4.0, decay=0.5)(rows, 1.0)
    assert judgment.weights.all()
    assert judgment.updates is not None
    assert judgment.updates[3:].tolist() == [[1, 0]] * 4
    assert state == pytest.approx(0.5 * 1 + 0.5 * 2)  # their median is 3, but it counts as at most twice the usual


@pytest.mark.parametrize("quantile", [0.0, 0.4])
def test_where_all_are_too_long_the_world_has_changed(quantile: float) -> None:
    rows = weights_only([[30, 0], [0, 40], [50, 0]])
    judgment, state = NormLimit(quantile=quantile)(rows, 1.0)
    assert judgment.weights.all()
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[1, 0], [0, 1], [1, 0]]
    for _ in range(200):
        _, state = NormLimit(quantile=quantile)(rows, state)
    assert state == pytest.approx(40, rel=0.05)  # and is known again after a while


def test_honest_clients_that_grow_are_not_left_to_short_liars() -> None:
    # Usual is 1. Three liars stay short, six honest clients are suddenly four times as long, a tenth is far beyond.
    rows = weights_only([[0, 1], [0, 1], [0, 1], *[[4, 0]] * 6, [0, 9]])
    assert NormLimit(quantile=0.0)(rows, 1.0)[0].weights.tolist() == [True] * 3 + [False] * 7
    assert NormLimit()(rows, 1.0)[0].weights.tolist() == [True] * 9 + [False]  # 0.4 of ten: the fourth min_ratio, 4


def test_long_liars_are_no_crowd_below_their_share() -> None:
    for liars in range(1, 7):  # 0.4 of ten are the four min_ratio: up to six liars are not among them
        rows = weights_only([[1, 0]] * (10 - liars) + [[5, 0]] * liars)
        assert NormLimit()(rows, 1.0)[0].weights.tolist() == [True] * (10 - liars) + [False] * liars


def test_a_round_without_any_movement_is_forgotten() -> None:
    _, state = NormLimit()(weights_only([[0, 0], [0, 0]]), None)
    judgment, state = NormLimit()(weights_only([[3, 0], [0, 3]]), state)
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[3, 0], [0, 3]]
    assert state == 3


def test_buffers_shrink_along_but_have_no_length() -> None:
    layout = Layout((("w", (1,)), ("running_mean", (1,))), "w", 1)
    cohort = Cohort.of(torch.tensor([[4.0, 100.0]]), torch.zeros(2), layout)
    judgment, _ = NormLimit(max_ratio=9.0)(cohort, 2.0)
    assert judgment.scores.tolist() == [4]
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[2, 50]]


def test_what_it_remembers_can_be_saved() -> None:
    part = NormLimit()
    _, state = part(weights_only([[1, 0], [0, 2]]), part.init())
    assert save_and_load(state, part) == state


@pytest.mark.parametrize("max_ratio", [0.5, float("nan"), float("inf")])
def test_nonsense_is_refused(max_ratio: float) -> None:
    with pytest.raises(ValueError, match=r"NormLimit.max_ratio must be at least 1 and finite"):
        NormLimit(max_ratio)


@pytest.mark.parametrize("quantile", [-0.1, 1.0, float("nan")])
def test_a_crowd_is_a_share(quantile: float) -> None:
    with pytest.raises(ValueError, match=r"NormLimit.quantile must be in \[0, 1\)"):
        NormLimit(quantile=quantile)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_is_a_share(decay: float) -> None:
    with pytest.raises(ValueError, match=r"NormLimit.decay must be in \[0, 1\)"):
        NormLimit(decay=decay)


def test_huge_rows_stay_numbers() -> None:
    judgment, state = NormLimit()(weights_only([[1e30, 0], [0, 3e38], [1, 1]]), 1.0)
    assert judgment.updates is not None
    assert torch.isfinite(judgment.updates).all()
    assert judgment.weights.tolist() == [False, False, True]
    assert state == pytest.approx(0.95 + 0.05 * 2**0.5)
