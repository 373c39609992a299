"""RFA as published and RLR, by hand and by slow twins."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Layout
from cosdefense.aggregators import RFA, RLR, GeometricMedian, Mean
from doubles import cohort_of, weights_only

SQUARE = [[0, 0], [1, 0], [0, 1], [9, 9]]


def test_pinned_steps() -> None:
    found = [RFA(steps=steps)(weights_only(SQUARE), None)[0].tolist() for steps in (1, 2, 3, 4)]
    expected = [1.226838, 0.713640, 0.562526, 0.520214]
    assert found == [pytest.approx([value] * 2, abs=1e-6) for value in expected]
    limit = RFA(steps=200, tolerance=0.0)(weights_only(SQUARE), None)[0]
    assert limit.tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    assert torch.allclose(limit, GeometricMedian()(weights_only(SQUARE), None)[0], atol=1e-4)


def test_short_updates_are_averaged() -> None:
    """The smoothing is a length: its authors' 1e-5 turns the rule into the mean for shorter updates."""
    rows = 1e-8 * torch.tensor(SQUARE, dtype=torch.float64)
    assert torch.allclose(RFA()(weights_only(rows), None)[0], Mean()(weights_only(rows), None)[0], rtol=1e-9)


def test_it_stops_when_nothing_changes() -> None:
    rows = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    assert RFA(steps=10**9)(weights_only(rows), None)[0].tolist() == pytest.approx([0, 0])


whole = st.lists(
    st.tuples(st.integers(-9, 9).map(float), st.integers(-9, 9).map(float), st.integers(1, 4).map(float)),
    min_size=1, max_size=7,
)  # fmt: skip


@given(whole, st.integers(1, 5))
def test_slow_twin_of_rfa(table: list[tuple[float, float, float]], steps: int) -> None:
    rows, counts = [row[:2] for row in table], [row[2] for row in table]
    alpha = [count / math.fsum(counts) for count in counts]
    cohort = replace(weights_only(rows), weights=torch.tensor(counts, dtype=torch.float64))
    v = [math.fsum(a * row[k] for a, row in zip(alpha, rows, strict=True)) for k in range(2)]
    for _ in range(steps):
        beta = [a / max(1e-5, math.dist(row, v)) for a, row in zip(alpha, rows, strict=True)]
        v = [math.fsum(b * row[k] for b, row in zip(beta, rows, strict=True)) / math.fsum(beta) for k in range(2)]
    assert RFA(steps, tolerance=0.0)(cohort, None)[0].tolist() == pytest.approx(v, abs=1e-6)


VOTES = [[1, 1, -1], [2, -1, -1], [1, 1, -2], [1, -1, -1], [-9, 1, -1]]


def test_pinned_reversal() -> None:
    # Net votes 3, 1, 5 of 5; the mean is (−0.8, 0.2, −1.2).
    assert RLR(0.6)(weights_only(VOTES), None)[0].tolist() == pytest.approx([-0.8, -0.2, -1.2])
    assert RLR(0.0)(weights_only(VOTES), None)[0].tolist() == pytest.approx([-0.8, 0.2, -1.2])
    assert RLR(1.0)(weights_only(VOTES), None)[0].tolist() == pytest.approx([0.8, -0.2, -1.2])


def test_statistics_neither_vote_nor_are_reversed() -> None:
    cohort = cohort_of([[1, 1, 5], [1, -1, -7], [1, 1, 5]])
    assert RLR(0.9)(cohort, None)[0].tolist() == pytest.approx([1, -1 / 3, 1])


@pytest.mark.parametrize(("agreement", "reversed_share", "along"), [(0.4, 0.53, 0.57), (0.8, None, -0.61)])
def test_honest_disagreement_is_punished(agreement: float, reversed_share: float | None, along: float) -> None:
    """Rows N(0.3, 1) of ten clients: 4 of 10 reverse half of the coordinates, 8 of 10 the whole direction."""
    rows = 0.3 + torch.randn(10, 100_000, generator=torch.Generator().manual_seed(0))
    cohort = Cohort.of(rows, torch.zeros(100_000), Layout((("w", (100_000,)),), "w", 100_000))
    found, mean = RLR(agreement)(cohort, None)[0], rows.mean(dim=0)
    assert float(torch.nn.functional.cosine_similarity(found, mean, dim=0)) == pytest.approx(along, abs=0.02)
    if reversed_share is not None:
        assert float((found * mean < 0).float().mean()) == pytest.approx(reversed_share, abs=0.02)


@given(st.lists(st.lists(st.integers(-2, 2).map(float), min_size=3, max_size=3), min_size=1, max_size=8),
       st.integers(0, 8))  # fmt: skip
def test_slow_twin_of_rlr(rows: list[list[float]], threshold: int) -> None:
    n = len(rows)
    found = RLR(min(threshold, n) / n)(weights_only(rows), None)[0].tolist()
    for j in range(3):
        column = [row[j] for row in rows]
        votes = abs(sum((x > 0) - (x < 0) for x in column))
        sign = 1 if votes >= min(threshold, n) else -1
        assert found[j] == pytest.approx(sign * math.fsum(column) / n)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: RFA(steps=0), r"RFA.steps must be at least 1, got 0"),
        (lambda: RFA(smoothing=0.0), r"RFA.smoothing must be positive and finite, got 0.0"),
        (lambda: RFA(tolerance=1.0), r"RFA.tolerance must be in \[0, 1\), got 1.0"),
        (lambda: RLR(1.5), r"RLR.agreement must be in \[0, 1\], got 1.5"),
    ],
)
def test_mistakes_are_named(make: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()  # type: ignore[operator]
