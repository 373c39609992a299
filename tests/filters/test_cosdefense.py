"""CosDefense against its definition, by hand and by a slow twin."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean
from cosdefense.filters import CosDefense
from shapes import unchecked

HEAD = Layout((("body", (2,)), ("head", (1, 2))), "head", 4)


def cohort_of(heads: list[list[float]], weights: list[float], dtype: torch.dtype = torch.float64) -> Cohort:
    """Updates whose bodies are noise that must not matter."""
    updates = torch.tensor([[1000.0 * i, -7.0, *head] for i, head in enumerate(heads)], dtype=dtype)
    return Cohort.of(updates, torch.tensor([3.0, 4.0, *weights], dtype=dtype), HEAD)


def accepted(rule: CosDefense, cohort: Cohort) -> list[bool]:
    judgment, _ = rule(cohort, None)
    return (judgment.weights != 0).tolist()


def test_pinned_scores() -> None:
    # Cosines to (1, 0): 1, −1, 0, 0.6; absolute: 1, 1, 0, 0.6; already spanning [0, 1]; mean 0.65.
    judgment, _ = CosDefense()(cohort_of([[2, 0], [-5, 0], [0, 3], [3, 4]], [1, 0]), None)
    assert judgment.scores.tolist() == pytest.approx([1, 1, 0, 0.6])
    assert (judgment.weights != 0).tolist() == [False, False, True, True]


def test_min_max_normalisation() -> None:
    # Absolute cosines 0.6, 0.8, 1 become 0, 0.5, 1; the mean 0.5 is not strictly below itself.
    judgment, _ = CosDefense()(cohort_of([[3, 4], [-4, 3], [9, 0]], [1, 0]), None)
    assert judgment.scores.tolist() == pytest.approx([0, 0.5, 1])
    assert (judgment.weights != 0).tolist() == [True, False, False]


def test_the_other_thresholds_spare_more() -> None:
    # Absolute cosines 0, 0.6, 0.8, 1: mean 0.6, population std sqrt(0.14) = 0.374.
    cohort = cohort_of([[0, 1], [3, 4], [4, 3], [1, 0]], [1, 0])
    assert accepted(CosDefense(), cohort) == [True, False, False, False]
    assert accepted(CosDefense(threshold="mean+std", k=0.0), cohort) == [True, False, False, False]
    assert accepted(CosDefense(threshold="mean+std", k=1.0), cohort) == [True, True, True, False]
    # Median 0.7, deviations 0.7, 0.1, 0.1, 0.3: MAD 0.2, scaled 0.2965; 0.7 + 1 · 0.2965 < 1 ≤ 0.7 + 1.1 · 0.2965.
    assert accepted(CosDefense(threshold="mad", k=1.0), cohort) == [True, True, True, False]
    assert accepted(CosDefense(threshold="mad", k=1.1), cohort) == [True, True, True, True]


def test_any_layer_by_name() -> None:
    # Bodies are (0, −7), (1000, −7), (2000, −7) against (3, 4): cosines −0.8, 0.594, 0.597.
    cohort = cohort_of([[1, 0], [0, 1], [0, 1]], [1, 0])
    assert accepted(CosDefense(), cohort) == [False, True, True]
    assert accepted(CosDefense(layer="body"), cohort) == [False, True, True]
    judgment, _ = CosDefense(layer="body")(cohort, None)
    assert judgment.scores.tolist() == pytest.approx([1, 0, 0.0137], abs=1e-3)
    with pytest.raises(ValueError, match=r"layer must be one of \['body', 'head'\], got 'tail'"):
        CosDefense(layer="tail")(cohort, None)
    buffered = Layout((("w", (1, 1)), ("norm.running_mean", (1,))), "w", 1)
    with pytest.raises(ValueError, match=r"layer must be one of \['w'\], got 'norm.running_mean'"):
        CosDefense(layer="norm.running_mean")(Cohort.of(torch.zeros(2, 2), torch.zeros(2), buffered), None)


@pytest.mark.parametrize(
    ("heads", "weights"),
    [
        ([[1.0, 2.0]], [1.0, 0.0]),  # one client
        ([[1.0, 2.0]] * 3, [1.0, 0.0]),  # all alike
        ([[1.0, 2.0], [3.0, -4.0], [5.0, 0.0]], [0.0, 0.0]),  # a zero head
        ([[0.0, 0.0]] * 3, [1.0, 0.0]),  # nobody moves the head
        ([[1.0, 0.0], [-2.0, 0.0]], [3.0, 0.0]),  # opposite, equally aligned
    ],
)
def test_without_an_outlier_everybody_stays(heads: list[list[float]], weights: list[float]) -> None:
    for rule in (CosDefense(), CosDefense(threshold="mean+std"), CosDefense(threshold="mad")):
        assert all(accepted(rule, cohort_of(heads, weights)))


@pytest.mark.parametrize("size", [1e-30, 1e25, 1e30])
def test_extreme_sizes_keep_their_direction(size: float) -> None:
    # In float32 the square of 1e25 is infinite and that of 1e-30 zero: a naive cosine would be 0 and accept it.
    cohort = cohort_of([[size, 0], [0, 1], [0.1, 1]], [1, 0], torch.float32)
    judgment, _ = CosDefense()(cohort, None)
    assert judgment.scores[0] == 1
    assert (judgment.weights != 0).tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_of_one_direction_are_equal_whatever_their_length(dtype: torch.dtype) -> None:
    """Their cosines are equal up to rounding, and rounding is no outlier."""
    rng = torch.Generator().manual_seed(0)
    layout = Layout((("head", (10, 128)),), "head", 1280)
    for _ in range(50):
        direction, params = torch.randn(2, 1280, generator=rng, dtype=dtype)
        updates = torch.rand(10, 1, generator=rng, dtype=dtype) * direction
        judgment, _ = CosDefense()(Cohort.of(updates, params, layout), None)
        assert bool((judgment.weights != 0).all())


def test_bias_is_not_looked_at() -> None:
    layout = Layout.of(torch.nn.Linear(2, 2))
    assert layout.head == "weight"
    updates = torch.tensor([[1.0, 0, 0, 0, 100, 100], [0, 1.0, 0, 0, 0, 0]])
    judgment, _ = CosDefense()(Cohort.of(updates, torch.tensor([1.0, 0, 0, 0, 1, 1]), layout), None)
    assert judgment.scores.tolist() == [1, 0]


def test_mistakes_are_named() -> None:
    complaint = r"CosDefense.threshold must be one of \('mean', 'mean\+std', 'mad'\), got 'median'"
    with unchecked(), pytest.raises(ValueError, match=complaint):
        CosDefense(threshold="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"CosDefense.k must be at least 0, got -1"):
        CosDefense(k=-1.0)


numbers = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
vectors = st.lists(numbers, min_size=2, max_size=2)


@given(st.lists(vectors, min_size=1, max_size=12), vectors)
def test_slow_twin(heads: list[list[float]], weights: list[float]) -> None:
    """The paper's algorithm in obvious Python. (A score within rounding of the mean may go either way.)"""
    scores = [abs(slow_cosine(head, weights)) for head in heads]
    low, high = min(scores), max(scores)
    judgment, _ = CosDefense()(cohort_of(heads, weights), None)
    if high - low <= 1e-15:
        assert bool((judgment.weights != 0).all())
    if high - low < 1e-9:
        return  # between equal and different lies rounding
    scores = [(score - low) / (high - low) for score in scores]
    mean = math.fsum(scores) / len(scores)
    assert judgment.scores.tolist() == pytest.approx(scores, abs=1e-6)
    for score, weight in zip(scores, judgment.weights.tolist(), strict=True):
        if abs(score - mean) > 1e-6:
            assert (weight != 0) == (score < mean)


def slow_cosine(a: list[float], b: list[float]) -> float:
    product = math.hypot(*a) * math.hypot(*b)
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / product if product else 0.0


def test_in_front_of_any_aggregator() -> None:
    defense = Defense((CosDefense(),), Mean())
    verdict, _ = defense(cohort_of([[2, 0], [-5, 0], [0, 3], [3, 4]], [1, 0]), defense.init())
    assert verdict.update.tolist() == [2500.0, -7.0, 1.5, 3.5]
    assert verdict.weights.tolist() == [0, 0, 1, 1]
    assert verdict.evidence["CosDefense"].tolist() == pytest.approx([1, 1, 0, 0.6])
