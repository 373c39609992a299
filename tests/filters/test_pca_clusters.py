"""PCA clusters against its definition, by hand, by a slow twin and by scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean
from cosdefense.filters import PCAClusters
from cosdefense.filters.pca_clusters import principal_components, standardize
from doubles import weights_of

# A body, a head of two classes with two weights each, and a statistic.
LAYOUT = Layout((("body", (1,)), ("head", (2, 2)), ("norm.running_mean", (1,))), "head", 5)
APART = [[0.0, 0.0], [2.0, 0.0], [10.0, 0.0]]


def cohort_of(first: Any, second: Any = None, dtype: torch.dtype = torch.float64) -> Cohort:
    """What each client sends for class 0, and for class 1 (the same to all unless given); the rest is loud."""
    one = torch.as_tensor(first, dtype=dtype)
    other = torch.zeros_like(one) if second is None else torch.as_tensor(second, dtype=dtype)
    noise = 1000 * torch.arange(len(one), dtype=dtype)[:, None] ** 2
    return Cohort.of(torch.cat([noise, one, other, -noise], dim=1), torch.zeros(6, dtype=dtype), LAYOUT)


def test_pinned_values() -> None:
    # One column varies: 0, 2, 10, mean 4, standard deviation √((16 + 4 + 36) / 3) = √(56/3). From the ends 0 and 10
    # grow {0, 2}, mean 1, and {10}. Distances to 1 less those to 10: 1 − 10, 1 − 8, 9 − 0.
    deviation = math.sqrt(56 / 3)
    judgment, _ = PCAClusters()(cohort_of(APART), None)
    assert judgment.weights.tolist() == [True, True, False]
    assert judgment.scores.tolist() == pytest.approx([-9 / deviation, -7 / deviation, 9 / deviation])
    assert judgment.points is not None
    assert judgment.points[:, 0].tolist() == pytest.approx([-4 / deviation, -2 / deviation, 6 / deviation])
    assert judgment.points[:, 1].tolist() == pytest.approx([0, 0, 0], abs=1e-12)


def test_every_column_counts_alike() -> None:
    """A column in thousands must not hide the one in which malicious updates differ."""
    first = [[0.0, 1000.0], [0.01, -1000.0], [-0.01, 1000.0], [0.0, -1000.0], [0.02, 0.0], [9.0, 0.0], [9.0, 0.0]]
    second = [[0.0, 0.0]] * 5 + [[5.0, 5.0]] * 2
    assert weights_of(PCAClusters(), cohort_of(first, second)) == [1, 1, 1, 1, 1, 0, 0]


def test_one_class_can_be_looked_at_alone() -> None:
    second = [[0.0, 7.0], [0.0, 0.0], [0.0, 0.5]]
    assert weights_of(PCAClusters(source=0), cohort_of(APART, second)) == [1, 1, 0]
    assert weights_of(PCAClusters(source=1), cohort_of(APART, second)) == [0, 1, 1]
    assert weights_of(PCAClusters(layer="body"), cohort_of(APART, second)) == [1, 1, 0]  # 0, 1000, 4000


def test_groups_of_equal_size_are_both_accepted() -> None:
    judgment, _ = PCAClusters()(cohort_of([[0.0, 0.0], [1.0, 0.0], [9.0, 0.0], [10.0, 0.0]]), None)
    assert judgment.weights.tolist() == [True] * 4
    assert judgment.scores.tolist() == [0] * 4


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_same_from_everybody(n: int) -> None:
    judgment, _ = PCAClusters()(cohort_of([[3.0, 4.0]] * n), None)
    assert judgment.weights.tolist() == [True] * n
    assert judgment.points is not None
    assert judgment.points.tolist() == [[0, 0]] * n


def test_two_clients_have_no_majority() -> None:
    assert weights_of(PCAClusters(), cohort_of([[0.0, 0.0], [1.0, 5.0]])) == [1, 1]


def test_the_majority_is_averaged_and_the_picture_is_kept() -> None:
    defense = Defense((PCAClusters(),), Mean())
    verdict, _ = defense(cohort_of(APART), defense.init())
    assert verdict.update[1].item() == 1
    assert verdict.points["PCAClusters"].shape == (3, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hostile_numbers(dtype: torch.dtype) -> None:
    rows = [[1.0, 2.0], [1.5, 2.0], [0.0, 0.0], [1e30, -1e30]]
    judgment, _ = PCAClusters()(cohort_of(rows, dtype=dtype), None)
    assert judgment.weights.tolist() == [True, True, True, False]
    assert bool(judgment.scores.isfinite().all())


def test_mistakes_are_named() -> None:
    for source in (2, -1):
        with pytest.raises(ValueError, match=rf"PCAClusters.source must be a class below 2, got {source}"):
            PCAClusters(source=source)(cohort_of(APART), None)
    with pytest.raises(ValueError, match=r"layer must be one of \['body', 'head'\], got 'norm.running_mean'"):
        PCAClusters(layer="norm.running_mean")(cohort_of(APART), None)


@given(
    st.lists(st.lists(st.integers(-9, 9).map(float), min_size=2, max_size=2), min_size=1, max_size=12),
)
def test_slow_twin(rows: list[list[float]]) -> None:
    """Two columns: standardised, their correlation matrix is [[1, ρ], [ρ, 1]], whose axes are the diagonals."""
    n, columns = len(rows), []
    for k in range(2):
        mean = math.fsum(row[k] for row in rows) / n
        deviation = math.sqrt(math.fsum((row[k] - mean) ** 2 for row in rows) / n)
        columns.append([(row[k] - mean) / deviation if deviation > 1e-9 else 0.0 for row in rows])
    xs, ys = columns
    correlation = math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / n
    judgment, _ = PCAClusters(source=0)(cohort_of(rows), None)
    if not any(xs) or not any(ys):
        points = [(x + y, 0.0) for x, y in zip(xs, ys, strict=True)]
    elif abs(correlation) < 1e-9:
        return  # no axis is longer than another
    else:
        turn = math.copysign(1, correlation)
        points = [((x + turn * y) / math.sqrt(2), (turn * x - y) / math.sqrt(2)) for x, y in zip(xs, ys, strict=True)]
    if abs(math.fsum(x**3 for x, _ in points)) < 1e-9 * n:
        return  # symmetric: which end is called first is rounding
    if math.fsum(x**3 for x, _ in points) < 0:
        points = [(-x, y) for x, y in points]
    assert judgment.points is not None
    assert judgment.points[:, 0].tolist() == pytest.approx([x for x, _ in points], abs=1e-9)
    second = slow_two_means(points)
    if second is None:
        return
    if 2 * sum(second) == n or sum(second) in (0, n):
        assert judgment.weights.tolist() == [True] * n
    else:
        larger = 2 * sum(second) > n
        assert judgment.weights.tolist() == [member == larger for member in second]


def slow_two_means(points: list[tuple[float, float]]) -> list[bool] | None:
    """Who ends up in the group that grew from the right end; None where rounding decides."""
    ends = sorted(points)
    if len(points) > 1 and any(
        abs(a[0] - b[0]) < 1e-9 and abs(a[1] - b[1]) > 1e-9 for a, b in ((ends[0], ends[1]), (ends[-1], ends[-2]))
    ):
        return None
    first, second = ends[0], ends[-1]
    members = [False] * len(points)
    while True:
        gaps = [math.dist(point, first) - math.dist(point, second) for point in points]
        if any(abs(gap) < 1e-9 for gap in gaps) and math.dist(first, second) > 1e-9:
            return None
        nearer = [gap > 1e-9 for gap in gaps]
        if nearer == members or not any(nearer):
            return nearer
        members = nearer
        first = slow_middle([p for p, member in zip(points, members, strict=True) if not member])
        second = slow_middle([p for p, member in zip(points, members, strict=True) if member])


def slow_middle(points: list[tuple[float, float]]) -> tuple[float, float]:
    return math.fsum(x for x, _ in points) / len(points), math.fsum(y for _, y in points) / len(points)


@pytest.mark.parametrize(("n", "k"), [(5, 3), (12, 40), (30, 7), (3, 2)])
def test_scikit_learn_draws_the_same_picture(n: int, k: int) -> None:
    """The authors use its scaler and its PCA; which way an axis points is a convention."""
    decomposition = pytest.importorskip("sklearn.decomposition", reason="scikit-learn is not installed")
    preprocessing = pytest.importorskip("sklearn.preprocessing", reason="scikit-learn is not installed")
    rows = torch.randn(n, k, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    rows[:, 0] = 3.0  # a weight that nobody moves
    scaled = preprocessing.StandardScaler().fit_transform(rows.numpy())
    assert torch.allclose(standardize(rows), torch.from_numpy(scaled), atol=1e-12)
    expected = torch.from_numpy(decomposition.PCA(2, svd_solver="full").fit_transform(scaled))
    found = principal_components(standardize(rows))
    for axis in range(2):
        assert torch.allclose(found[:, axis].abs(), expected[:, axis].abs(), atol=1e-9)
        assert float(found[:, axis].pow(3).sum()) >= 0  # the longer tail to the right and top


@pytest.mark.parametrize("seed", range(5))
def test_poisoned_clients_form_a_cluster(seed: int) -> None:
    """What the paper shows: the flipped class moves the same weights the other way."""
    rng = torch.Generator().manual_seed(seed)
    honest = torch.tensor([1.0, -2.0]) + 0.3 * torch.randn(8, 2, generator=rng)
    malicious = torch.tensor([-1.0, 2.0]) + 0.3 * torch.randn(3, 2, generator=rng)
    assert weights_of(PCAClusters(source=0), cohort_of(torch.cat([honest, malicious]))) == [1] * 8 + [0] * 3
