"""Clip against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Layout
from cosdefense.filters import Clip

PLANE = Layout((("w", (2,)),), "w", 2)


def test_pinned_values() -> None:
    cohort = Cohort.of(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), torch.zeros(2), PLANE)
    judgment, _ = Clip(1.0)(cohort, None)
    assert judgment.scores.tolist() == pytest.approx([5, 0.5, 0])
    assert judgment.updates is not None
    assert torch.allclose(judgment.updates, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert judgment.weights.tolist() == [1, 1, 1]


def test_short_updates_keep_every_bit() -> None:
    cohort = Cohort.of(torch.tensor([[0.1, 0.2]]), torch.zeros(2), PLANE)
    judgment, _ = Clip(1.0)(cohort, None)
    assert judgment.updates is not None
    assert torch.equal(judgment.updates, cohort.updates)


def test_buffers_do_not_count_but_shrink_along() -> None:
    layout = Layout((("w", (1,)), ("norm.running_mean", (1,))), "w", 1)
    judgment, _ = Clip(1.0)(Cohort.of(torch.tensor([[2.0, 100.0], [0.5, 100.0]]), torch.zeros(2), layout), None)
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[1.0, 50.0], [0.5, 100.0]]


def test_a_norm_that_overflows_float32() -> None:
    judgment, _ = Clip(1.0)(Cohort.of(torch.tensor([[3e38, 0.0]]), torch.zeros(2), PLANE), None)
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [pytest.approx([1.0, 0.0])]


def test_a_limit_beyond_float32() -> None:
    judgment, _ = Clip(1e39)(Cohort.of(torch.tensor([[3.0, 4.0]]), torch.zeros(2), PLANE), None)
    assert judgment.updates is not None
    assert judgment.updates.tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("size", [3e38, 1e-40])
def test_scores_stay_finite(size: float) -> None:
    judgment, _ = Clip(1.0)(Cohort.of(torch.tensor([[size, size]]), torch.zeros(2), PLANE), None)
    assert float(judgment.scores[0]) == pytest.approx(size * 2**0.5, rel=1e-3)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan, math.inf])
def test_mistakes_are_named(max_norm: float) -> None:
    with pytest.raises(ValueError, match=r"Clip.max_norm must be positive and finite"):
        Clip(max_norm)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=8), st.floats(0.01, 100))
def test_slow_twin(rows: list[tuple[float, float]], max_norm: float) -> None:
    cohort = Cohort.of(torch.tensor(rows, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), PLANE)
    judgment, _ = Clip(max_norm)(cohort, None)
    assert judgment.updates is not None
    for (x, y), found in zip(rows, judgment.updates.tolist(), strict=True):
        factor = min(1.0, max_norm / math.hypot(x, y)) if (x, y) != (0, 0) else 1.0
        assert found == pytest.approx([x * factor, y * factor], rel=1e-9)
