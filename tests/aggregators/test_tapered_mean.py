"""The tapered mean by hand and by a slow twin."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense.aggregators import Mean, TaperedMean
from cosdefense.aggregators.tapered_mean import NormMemory
from doubles import save_and_load, weights_only


def aggregate(rows: list[list[float]], memory: NormMemory = NormMemory(), **options: float) -> list[float]:
    return list(TaperedMean(**options)(weights_only(rows), memory)[0].tolist())


def test_updates_of_one_norm_give_the_plain_mean() -> None:
    rows = [[5.0, 0.0], [3.0, 4.0], [0.0, 5.0]]
    assert aggregate(rows) == pytest.approx(Mean()(weights_only(rows), None)[0].tolist())


def test_zeros_do_not_slow_the_model_down() -> None:
    assert aggregate([[4.0, 0.0], [4.0, 0.0], [0.0, 0.0], [0.0, 0.0]]) == pytest.approx([4, 0])
    # Nearly nothing counts nearly nothing: 1 of 2.001 parts, which are 4 long.
    assert aggregate([[4.0, 0.0], [4.0, 0.0], [0.0, 0.004]]) == pytest.approx([8 / 2.001, 0.004 / 2.001])


def test_long_updates_are_clipped_then_tapered() -> None:
    # The median is 1. One of 1.5 counts as 1; one of 3 as (1.5 / 3)² = ¼.
    up, right = [0.0, 1.0], [1.0, 0.0]
    assert aggregate([right, right, [0.0, 1.5]]) == pytest.approx([2 / 3, 1 / 3])
    assert aggregate([right, up, up, right, [0.0, 3.0]]) == pytest.approx([2 / 4.25, 2.25 / 4.25])
    assert aggregate([right, up, up, right, [0.0, 3.0]], taper=3.0) == pytest.approx([2 / 5, 3 / 5])


def test_a_round_of_long_updates_is_clipped_to_the_running_median_norm() -> None:
    memory = NormMemory(update=1.0, mean=1.0)
    assert aggregate([[10.0, 0.0], [10.0, 0.0], [0.0, 1.0]], memory) == pytest.approx([2 / 3, 1 / 3])  # none tapers
    _, after = TaperedMean()(weights_only([[10.0, 0.0], [10.0, 0.0], [0.0, 1.0]]), memory)
    assert after.update == pytest.approx(0.95 + 0.05 * 2)  # one round counts with at most twice


def test_the_mean_has_a_limited_norm() -> None:
    rows = [[1.0, 0.0]] * 3
    assert aggregate(rows, NormMemory(1.0, 0.5)) == pytest.approx([0.6, 0])
    assert aggregate(rows, NormMemory(1.0, 0.001)) == pytest.approx([0.3, 0])  # but at least 0.3 of an update
    _, after = TaperedMean()(weights_only(rows), NormMemory(1.0, 0.5))
    assert after.mean == pytest.approx(0.95 * 0.5 + 0.05)


def test_weights_count_and_rejected_rows_do_not() -> None:
    cohort = replace(
        weights_only([[1, 0], [0, 1], [1e30, 0]]), weights=torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    )
    assert TaperedMean()(cohort, NormMemory())[0].tolist() == pytest.approx([0.75, 0.25])


def test_a_round_of_zeros_is_forgotten() -> None:
    update, state = TaperedMean()(weights_only([[0, 0], [0, 0]]), NormMemory())
    assert update.tolist() == [0, 0]
    assert state == NormMemory()
    assert save_and_load(NormMemory(2.0, 1.0), TaperedMean()) == NormMemory(2.0, 1.0)


@given(
    st.lists(st.tuples(*[st.floats(-9, 9)] * 2).filter(lambda row: abs(row[0]) + abs(row[1]) > 0.01), min_size=1),
    st.floats(0.5, 20),
)
def test_it_agrees_with_a_slow_twin(rows: list[tuple[float, float]], running: float) -> None:
    norms = [(a * a + b * b) ** 0.5 for a, b in rows]
    limit = min(statistics.median(norms), running)
    start = 1.5 * max(limit, sorted(norms)[(len(norms) - 1) // 2])
    lengths = [min(norm, limit) * min(1.0, start / norm) ** 2 for norm in norms]
    pairs = list(zip(rows, norms, lengths, strict=True))
    mean = [limit * sum(row[i] / norm * length for row, norm, length in pairs) / sum(lengths) for i in (0, 1)]
    assert aggregate([list(row) for row in rows], NormMemory(running, 1e9)) == pytest.approx(mean, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taper": 0.5}, "TaperedMean.taper must be at least 1 and finite, got 0.5"),
        ({"max_mean_ratio": 0.0}, "TaperedMean.max_mean_ratio must be positive and finite, got 0.0"),
        ({"decay": 1.0}, r"TaperedMean.decay must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaperedMean(**options)
