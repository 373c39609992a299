"""FLAME, and what it is made of: cosine distances around a model and the majority component."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean
from cosdefense.filters import FLAME
from cosdefense.ops import cosine_distances, majority_component
from doubles import slow_cosine


def cohort_around(params: list[float], rows: list[list[float]]) -> Cohort:
    start = torch.tensor(params, dtype=torch.float64)
    return Cohort.of(torch.tensor(rows, dtype=torch.float64), start, Layout((("w", (len(start),)),), "w", len(start)))


CARD = cohort_around([1, 1], [[0.5, 0], [0.4, 0.1], [0.5, 0.2], [0, 0.9], [-2, 0.5]])


def test_pinned_values() -> None:
    judgment, _ = FLAME()(CARD, None)
    assert judgment.weights.tolist() == [True, True, True, False, False]
    assert float(judgment.scores[:3].max()) == pytest.approx(0.003038, abs=1e-6)  # the card's τ
    assert bool((judgment.scores[3:] > judgment.scores[:3].max()).all())
    assert judgment.updates is not None
    assert judgment.updates.norm(dim=1)[3:].tolist() == pytest.approx([0.538516] * 2, abs=1e-6)
    defense = Defense((FLAME(),), Mean())
    assert defense(CARD, defense.init())[0].update.tolist() == pytest.approx([0.466667, 0.1], abs=1e-6)


def test_the_norm_is_the_median_of_all_and_the_noise_is_relative_to_it() -> None:
    """The accepted rows are 0.5, 0.412 and 0.539 long: their own median is 0.5, that of all five 0.539."""
    defense = get("flame", noise=0.5)
    quiet, loud = (get("flame", noise=level)(CARD, defense.init())[0].update for level in (0.0, 0.5))
    assert quiet.tolist() == pytest.approx([0.466667, 0.1], abs=1e-6)
    again = defense(CARD, defense.init())[0].update
    assert torch.equal(loud, again)
    assert not torch.equal(loud, quiet)


def slow_majority(distances: list[list[float]]) -> set[int]:
    """Grow the limit over all distances until a component has more than half of the points."""
    n = len(distances)
    for limit in sorted({value for row in distances for value in row}):
        for start in range(n):
            reached, waiting = {start}, [start]
            while waiting:
                i = waiting.pop()
                new = {j for j in range(n) if distances[i][j] <= limit} - reached
                reached |= new
                waiting += new
            if 2 * len(reached) > n:
                return reached
    raise AssertionError("all points are connected at the largest distance")


small = st.integers(1, 9).flatmap(lambda n: st.lists(st.integers(0, 12), min_size=n * n, max_size=n * n))


@given(small)
def test_slow_twin_of_the_majority_component(numbers: list[int]) -> None:
    """Few different distances: many ties."""
    n = math.isqrt(len(numbers))
    table = [[0.0 if i == j else float(numbers[min(i, j) * n + max(i, j)]) for j in range(n)] for i in range(n)]
    found = majority_component(torch.tensor(table, dtype=torch.float64))
    assert set(found.nonzero().flatten().tolist()) == slow_majority(table)


@pytest.mark.parametrize("n", [3, 4, 7, 10, 11, 20])
def test_the_majority_component_is_that_of_hdbscan(n: int) -> None:
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
    for seed in range(5):
        points = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        distances = torch.cdist(points, points)
        judge = cluster.HDBSCAN(
            min_cluster_size=n // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
        )
        labels = judge.fit_predict(distances.numpy())
        assert majority_component(distances).tolist() == (labels == 0).tolist()


def test_pinned_component() -> None:
    line = torch.tensor([0.0, 1.0, 2.5, 4.5, 50.0], dtype=torch.float64)
    distances = (line[:, None] - line).abs()
    assert majority_component(distances).tolist() == [True, True, True, False, False]  # 0–1 at 1, 2.5 at 1.5
    assert majority_component(distances[:2, :2]).tolist() == [True, True]
    assert majority_component(distances[:1, :1]).tolist() == [True]
    assert majority_component(torch.full((3, 3), torch.inf)).tolist() == [True] * 3


whole = st.lists(st.lists(st.integers(-9, 9).map(float), min_size=3, max_size=3), min_size=1, max_size=6)


@given(whole, st.sampled_from([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [-500.0, 700.0, 1.0]]))
def test_slow_twin_of_cosine_distances(rows: list[list[float]], origin: list[float]) -> None:
    found = cosine_distances(torch.tensor(rows, dtype=torch.float64), torch.tensor(origin, dtype=torch.float64))
    models = [[a + b for a, b in zip(row, origin, strict=True)] for row in rows]
    expected = [[0.0 if one == other else 1 - slow_cosine(one, other) for other in models] for one in models]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-9)
    assert torch.equal(found, found.T)


def test_models_that_differ_little() -> None:
    """Updates of a ten-millionth of the model: 1 − cos is 1e-14, where float64 cosines have no digit left."""
    rng = torch.Generator().manual_seed(0)
    origin = torch.randn(1000, generator=rng, dtype=torch.float64)
    rows = 1e-7 * torch.randn(6, 1000, generator=rng, dtype=torch.float64)
    across = rows - (rows @ origin)[:, None] * origin / origin.square().sum()
    expected = (across[:, None] - across).square().sum(dim=2) / 2 / origin.square().sum()  # for small angles
    assert torch.allclose(cosine_distances(rows, origin), expected, rtol=1e-5, atol=0)
    twins = torch.cat([rows, rows[:1]])
    assert torch.equal(cosine_distances(twins, origin)[0, 1:6], cosine_distances(twins, origin)[6, 1:6])


@pytest.mark.parametrize("size", [1e30, 1e200])
def test_a_huge_row_is_as_far_as_its_direction(size: float) -> None:
    rows = torch.tensor([[size, 0.0], [0.0, 1e-3], [1e-3, 0.0]], dtype=torch.float64)
    origin = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert cosine_distances(rows, origin)[0].tolist() == pytest.approx([0, 5e-7, 0], abs=1e-9)
    assert cosine_distances(rows)[0].tolist() == pytest.approx([0, 1, 0], abs=1e-9)


def test_what_is_compared() -> None:
    layout = Layout((("body", (2,)), ("head", (2, 1))), "head", 4)
    rows = torch.tensor([[9, 0, 1, 0], [-9, 0, 1, 0.1], [0, 9, 1, 0.2], [9, 0.1, 0, 9], [9, 0.2, -9, 0]])
    cohort = Cohort.of(rows, torch.zeros(4), layout)
    assert FLAME("head")(cohort, None)[0].weights.tolist() == [True, True, True, False, False]
    away = Cohort.of(rows, torch.tensor([0.0, 0.0, 100.0, 0.0]), layout)
    assert torch.equal(FLAME("updates")(cohort, None)[0].scores, FLAME("updates")(away, None)[0].scores)
    with pytest.raises(ValueError, match=r"FLAME.compared must be one of .*, got 'weights'"):
        FLAME("weights")  # type: ignore[arg-type]
