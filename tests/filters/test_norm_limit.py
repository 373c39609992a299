"""NormLimit by hand: norms, state, and edge cases."""

from __future__ import annotations

import pytest
import torch

from cosdefense import Cohort, Layout
from cosdefense.filters import NormLimit
from doubles import save_and_load, weights_only


def test_the_first_round_uses_its_median() -> None:
    # Norms 1, 2, 3, 9: the median is 2.5, twice that 5. The fourth is rejected, the third clipped to 2.5.
    judgment, state = NormLimit()(weights_only([[1, 0], [0, 2], [0, 3], [9, 0]]), None)
    assert judgment.weights.tolist() == [True, True, True, False]
    assert judgment.updates is not None
    assert judgment.updates[:3].tolist() == [[1, 0], [0, 2], [0, 2.5]]
    assert judgment.scores.tolist() == [1, 2, 3, 9]
    assert state == 2  # the median of the accepted updates


def test_later_rounds_use_the_running_median() -> None:
    # The running median is 1. Four malicious updates of norm 3 out of seven do not change it at once.
    rows = weights_only([[1, 0], [0, 0.5], [0, 0.5], *[[3, 0]] * 4])
    judgment, state = NormLimit()(rows, 1.0)
    assert judgment.weights.tolist() == [True] * 3 + [False] * 4
    assert state == pytest.approx(0.95 * 1 + 0.05 * 0.5)
    judgment, state = NormLimit(max_ratio=4.0, decay=0.5)(rows, 1.0)
    assert judgment.weights.all()
    assert judgment.updates is not None
    assert judgment.updates[3:].tolist() == [[1, 0]] * 4
    assert state == pytest.approx(
        0.5 * 1 + 0.5 * 2
    )  # their median is 3, but it counts as at most twice the running median


@pytest.mark.parametrize("quantile", [0.0, 0.4])
def test_updates_that_all_grow_are_clipped_not_rejected(quantile: float) -> None:
    rows = weights_only([[30, 0], [0, 40], [50, 0]])
    judgment, state = NormLimit(quantile=quantile)(rows, 1.0)
    assert judgment.weights.all()
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[1, 0], [0, 1], [1, 0]]
    for _ in range(200):
        _, state = NormLimit(quantile=quantile)(rows, state)
    assert state == pytest.approx(40, rel=0.05)  # the running median follows


def test_growing_honest_updates_are_accepted_beside_short_malicious_ones() -> None:
    # The running median is 1. Three malicious updates stay short, six honest ones are four times as long, one is 9.
    rows = weights_only([[0, 1], [0, 1], [0, 1], *[[4, 0]] * 6, [0, 9]])
    assert NormLimit(quantile=0.0)(rows, 1.0)[0].weights.tolist() == [True] * 3 + [False] * 7
    assert NormLimit()(rows, 1.0)[0].weights.tolist() == [True] * 9 + [
        False
    ]  # the 0.4 quantile of ten is the fourth smallest, 4


def test_long_malicious_updates_below_the_quantile_are_rejected() -> None:
    for malicious in range(1, 7):  # the 0.4 quantile of ten is the fourth smallest: up to six are above it
        rows = weights_only([[1, 0]] * (10 - malicious) + [[5, 0]] * malicious)
        assert NormLimit()(rows, 1.0)[0].weights.tolist() == [True] * (10 - malicious) + [False] * malicious


def test_a_round_of_zeros_is_forgotten() -> None:
    _, state = NormLimit()(weights_only([[0, 0], [0, 0]]), None)
    judgment, state = NormLimit()(weights_only([[3, 0], [0, 3]]), state)
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[3, 0], [0, 3]]
    assert state == 3


def test_buffers_are_scaled_but_not_measured() -> None:
    layout = Layout((("w", (1,)), ("running_mean", (1,))), "w", 1)
    cohort = Cohort.of(torch.tensor([[4.0, 100.0]]), torch.zeros(2), layout)
    judgment, _ = NormLimit(max_ratio=9.0)(cohort, 2.0)
    assert judgment.scores.tolist() == [4]
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[2, 50]]


def test_the_state_can_be_saved() -> None:
    part = NormLimit()
    _, state = part(weights_only([[1, 0], [0, 2]]), part.init())
    assert save_and_load(state, part) == state


@pytest.mark.parametrize("max_ratio", [0.5, float("nan"), float("inf")])
def test_a_wrong_ratio_is_refused(max_ratio: float) -> None:
    with pytest.raises(ValueError, match=r"NormLimit.max_ratio must be at least 1 and finite"):
        NormLimit(max_ratio)


@pytest.mark.parametrize("quantile", [-0.1, 1.0, float("nan")])
def test_a_wrong_quantile_is_refused(quantile: float) -> None:
    with pytest.raises(ValueError, match=r"NormLimit.quantile must be in \[0, 1\)"):
        NormLimit(quantile=quantile)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_wrong_decay_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=r"NormLimit.decay must be in \[0, 1\)"):
        NormLimit(decay=decay)


def test_huge_rows_stay_finite() -> None:
    judgment, state = NormLimit()(weights_only([[1e30, 0], [0, 3e38], [1, 1]]), 1.0)
    assert judgment.updates is not None
    assert torch.isfinite(judgment.updates).all()
    assert judgment.weights.tolist() == [False, False, True]
    assert state == pytest.approx(0.95 + 0.05 * 2**0.5)
