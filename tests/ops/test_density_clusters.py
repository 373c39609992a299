"""HDBSCAN against its definition and against scikit-learn's, where no two distances are equal."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cosdefense.ops import density_clusters
from slow_clusters import slow_density_clusters


def groups(labels: Tensor) -> set[frozenset[int]]:
    numbers = set(labels.tolist()) - {-1}
    return {frozenset((labels == number).nonzero().flatten().tolist()) for number in numbers}


def line(*places: float) -> Tensor:
    points = torch.tensor(places, dtype=torch.float64)
    return (points[:, None] - points).abs()


def test_pinned_values() -> None:
    two = line(0, 1, 2, 100, 101, 102, 1000)
    assert groups(density_clusters(two, 2, 1)) == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}
    assert density_clusters(line(0, 1, 2, 3), 2, 1).tolist() == [-1] * 4  # one cluster, which is not allowed
    assert density_clusters(line(0, 1, 2, 3), 2, 1, allow_single_cluster=True).tolist() == [0] * 4
    assert density_clusters(torch.zeros(3, 3), 2, 1, allow_single_cluster=True).tolist() == [0] * 3
    assert density_clusters(torch.zeros(1, 1), 2, 1, allow_single_cluster=True).tolist() == [0]
    assert density_clusters(line(0, 0, 5, 5), 2, 1).tolist() == [0, 0, 1, 1]


tables = st.integers(1, 8).flatmap(lambda n: st.lists(st.integers(0, 6), min_size=n * n, max_size=n * n))


@settings(max_examples=60)
@given(tables, st.integers(2, 4), st.integers(1, 3), st.booleans())
def test_slow_twin(numbers: list[int], min_size: int, min_samples: int, single: bool) -> None:
    """Few different distances: many ties."""
    n = math.isqrt(len(numbers))
    table = [[0.0 if i == j else float(numbers[min(i, j) * n + max(i, j)]) for j in range(n)] for i in range(n)]
    distances = torch.tensor(table, dtype=torch.float64)
    found = groups(density_clusters(distances, min_size, min_samples, allow_single_cluster=single))
    assert found == slow_density_clusters(table, min_size, min_samples, single=single)


@pytest.mark.parametrize("n", [4, 7, 10, 20, 40])
@pytest.mark.parametrize("single", [False, True])
def test_the_clusters_are_those_of_scikit_learn(n: int, single: bool) -> None:
    """With one neighbor. With more, the distances to neighbors are the same for several pairs of points."""
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
    for seed in range(4):
        points = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        points[: n // 3] += 4
        distances = torch.cdist(points, points)
        for size in (2, 3):
            judge = cluster.HDBSCAN(  # its min_samples counts the point itself
                min_cluster_size=size, min_samples=2, allow_single_cluster=single, metric="precomputed", copy=True
            )
            expected = torch.from_numpy(judge.fit_predict(distances.numpy()))
            assert groups(density_clusters(distances, size, 1, allow_single_cluster=single)) == groups(expected)
