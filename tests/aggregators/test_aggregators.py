"""Mean, median and trimmed mean against their definitions."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Aggregator, Cohort, Layout
from cosdefense.aggregators import Mean, Median, TrimmedMean

columns = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=15)


def combined(rule: Aggregator, column: list[float], dtype: torch.dtype = torch.float64) -> float:
    """What a rule makes of one coordinate."""
    updates = torch.tensor(column, dtype=dtype)[:, None]
    update, _ = rule(Cohort.of(updates, torch.zeros(1, dtype=dtype), Layout((("w", (1,)),), "w", 1)), None)
    return float(update[0])


def test_pinned_values() -> None:
    column = [5.0, 1.0, 100.0, 2.0]
    assert combined(Mean(), column) == 27.0
    assert combined(Median(), column) == 3.5  # even n: the mean of the two middle values, not the lower one
    assert combined(Median(), column[:3]) == 5.0
    assert combined(TrimmedMean(0.25), column) == 3.5
    assert combined(TrimmedMean(0.0), column) == 27.0


@given(columns)
def test_slow_twins(column: list[float]) -> None:
    assert combined(Mean(), column) == pytest.approx(math.fsum(column) / len(column), rel=1e-9, abs=1e-6)
    assert combined(Median(), column) == pytest.approx(statistics.median(column), rel=1e-9, abs=1e-6)


@given(columns, st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.4, 0.49]))
def test_trimmed_mean_slow_twin(column: list[float], contamination: float) -> None:
    trim = int(contamination * len(column) + 1e-9)
    rest = sorted(column)[trim : len(column) - trim]
    assert combined(TrimmedMean(contamination), column) == pytest.approx(
        math.fsum(rest) / len(rest), rel=1e-9, abs=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outlier", [1e30, -1e30])
def test_an_outlier_does_not_cancel_the_trimmed_mean(dtype: torch.dtype, outlier: float) -> None:
    assert combined(TrimmedMean(0.2), [1.0, 2.0, 3.0, 4.0, outlier], dtype) == pytest.approx(
        3.0 if outlier > 0 else 2.0
    )


def test_a_small_share_of_few_clients_trims_nobody() -> None:
    assert combined(TrimmedMean(0.1), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == 4.5  # ⌊0.8⌋ = 0, not an empty slice


def test_almost_a_half_leaves_somebody() -> None:
    assert combined(TrimmedMean(0.49999999999), [1.0, 3.0, 5.0, 7.0]) == 4.0


@pytest.mark.parametrize("rule", [Median(), Mean(), TrimmedMean(0.25)])
def test_huge_finite_values_stay_finite(rule: Aggregator) -> None:
    assert math.isfinite(combined(rule, [3e38, 3e38, 3e38, 3e38], torch.float32))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"TrimmedMean.contamination must be in \[0, 0.5\), got 0.5"):
        TrimmedMean(0.5)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.3)])
@pytest.mark.parametrize("distance", [1e6, -1e6])
def test_robust_within_the_honest_spread(rule: Aggregator, distance: float) -> None:
    """With the promised share of attackers at a distance of 1e6, every coordinate stays within the honest range."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        honest = torch.randn(7, 50, generator=rng)
        rows = torch.cat([honest, honest.mean(dim=0) + distance * torch.rand(3, 50, generator=rng)])
        update, _ = rule(Cohort.of(rows, torch.zeros(50), Layout((("w", (50,)),), "w", 50)), None)
        assert bool(((update >= honest.amin(dim=0)) & (update <= honest.amax(dim=0))).all())
