"""Krum against its definition, by hand and by a slow twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Layout, TooFewClients
from cosdefense.filters import Krum, MultiKrum
from cosdefense.filters.krum import sum_nearest
from cosdefense.ops import squared_distances

rows_of_three = st.lists(st.lists(st.integers(-50, 50).map(float), min_size=3, max_size=3), min_size=3, max_size=12)


def cohort_of(rows: Any, dtype: torch.dtype = torch.float64) -> Cohort:
    updates = torch.as_tensor(rows, dtype=dtype)
    d = updates.shape[1]
    return Cohort.of(updates, torch.zeros(d, dtype=dtype), Layout((("w", (d,)),), "w", d))


def kept(rule: Krum | MultiKrum, rows: Any) -> list[int]:
    judgment, _ = rule(cohort_of(rows), None)
    return judgment.weights.nonzero().flatten().tolist()


def test_pinned_scores() -> None:
    # n = 5, f = 1: two nearest neighbours. On a line at 0, 1, 3, 6, 100.
    rows = [[0.0], [1.0], [3.0], [6.0], [100.0]]
    judgment, _ = Krum(contamination=0.2)(cohort_of(rows), None)
    assert judgment.scores.tolist() == [1 + 9, 1 + 4, 4 + 9, 9 + 25, 94**2 + 97**2]
    assert judgment.weights.nonzero().flatten().tolist() == [1]


def test_multi_krum_keeps_all_but_the_assumed_attackers() -> None:
    rows = [[0.0], [1.0], [3.0], [6.0], [100.0]]
    assert kept(MultiKrum(contamination=0.2), rows) == [0, 1, 2, 3]
    assert kept(MultiKrum(contamination=0.2, keep=2), rows) == [0, 1]
    assert kept(MultiKrum(contamination=0.2, keep=99), rows) == [0, 1, 2, 3, 4]


def test_ties_stay_together() -> None:
    # Two identical pairs far apart and symmetric: no order may decide between them.
    rows = [[0.0], [0.0], [10.0], [10.0]]
    assert kept(Krum(contamination=0.0), rows) == [0, 1, 2, 3]


def test_multi_krum_shares_the_last_places_among_ties() -> None:
    """Four identical colluding clients of ten, three of them expected: one place is left for all four."""
    honest = [[float(x), float(y)] for x, y in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2))]
    rows = [*honest, *[[-50.0, -50.0]] * 4]
    judgment, _ = MultiKrum(contamination=0.3)(cohort_of(rows), None)
    assert judgment.weights.tolist() == [1] * 6 + [0.25] * 4
    # Two places for a tie of three.
    judgment, _ = MultiKrum(contamination=0.0, keep=2)(cohort_of([[0.0]] * 3), None)
    assert judgment.weights.tolist() == pytest.approx([2 / 3] * 3)


@given(rows_of_three, st.integers(1, 12))
def test_slow_twin_of_multi_krum(rows: list[list[float]], keep: int) -> None:
    """The mean of the weights over all orders in which the ties could stand."""
    judgment, _ = MultiKrum(0.0, keep)(cohort_of(rows), None)
    scores = judgment.scores.tolist()
    keep = min(keep, len(rows))
    places = {score: [i for i, other in enumerate(sorted(scores)) if other == score] for score in scores}
    expected = [sum(place < keep for place in places[score]) / len(places[score]) for score in scores]
    assert judgment.weights.tolist() == pytest.approx(expected)


def test_too_few_clients() -> None:
    with pytest.raises(TooFewClients, match=r"Krum needs more than 4 clients to tolerate 1 attackers, got 4"):
        Krum(contamination=0.25)(cohort_of([[0.0]] * 4), None)
    with pytest.raises(TooFewClients, match=r"more than 2 clients .* got 2"):
        Krum(contamination=0.0)(cohort_of([[0.0]] * 2), None)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"Krum.contamination must be in \[0, 0.5\), got 0.5"):
        Krum(contamination=0.5)
    with pytest.raises(ValueError, match=r"MultiKrum.keep must be at least 1, got 0"):
        MultiKrum(keep=0)


@given(rows_of_three, st.sampled_from([0.0, 0.1, 0.2, 0.3]))
def test_slow_twin(rows: list[list[float]], contamination: float) -> None:
    n, f = len(rows), int(contamination * len(rows) + 1e-9)
    if n <= 2 * f + 2:
        return
    scores = []
    for i in range(n):
        distances = sorted(sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True)) for j in range(n) if j != i)
        scores.append(sum(distances[: n - f - 2]))
    # Whole numbers: sums are exact, so ties are real ties.
    judgment, _ = Krum(contamination)(cohort_of(rows), None)
    assert judgment.scores.tolist() == pytest.approx(scores, rel=1e-12)
    assert judgment.weights.tolist() == [score == min(scores) for score in scores]


def test_nearly_identical_rows_in_float32() -> None:
    """Large common part, tiny differences: the Gram matrix would cancel, differences do not."""
    rng = torch.Generator().manual_seed(0)
    base = 100 * torch.randn(1, 5000, generator=rng)
    rows = base + 1e-3 * torch.randn(12, 5000, generator=rng)
    found = sum_nearest(squared_distances(rows), n_neighbors=7)
    exact = rows.double()
    expected = torch.tensor(
        [sorted(float((exact[i] - exact[j]).square().sum()) for j in range(12) if j != i)[:7] for i in range(12)]
    ).sum(dim=1)
    assert found.argsort().tolist() == expected.argsort().tolist()
    assert torch.allclose(found, expected.double(), rtol=1e-5)
    assert bool((found > 0).all())
