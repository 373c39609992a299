"""OpposedClusters against its definition, by hand and by a slow twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cosdefense.filters import OpposedClusters
from doubles import cohort_of, slow_cosine, weights_of, weights_only


def test_the_smaller_of_two_opposed_clusters_is_rejected() -> None:
    assert weights_of(OpposedClusters(), cohort_of([[1, 0.1], [1, -0.1], [2, 0], [-5, 0.1], [-5, 0]]), None) == [
        1,
        1,
        1,
        0,
        0,
    ]


def test_votes_decide_not_numbers() -> None:
    """Three near-duplicates that share one vote lose against two votes."""
    cohort = cohort_of([[1, 0.1], [1, -0.1], [-5, 0], [-5, 0], [-5, 0]])
    assert weights_of(OpposedClusters(), cohort, None) == [0, 0, 1, 1, 1]
    once = replace(cohort, weights=torch.tensor([1, 1, 1 / 3, 1 / 3, 1 / 3], dtype=torch.float64))
    assert weights_of(OpposedClusters(), once, None) == [1, 1, 0, 0, 0]


def test_a_tie_rejects_nobody() -> None:
    assert weights_of(OpposedClusters(), cohort_of([[1, 0], [-1, 0]]), None) == [1, 1]
    assert weights_of(OpposedClusters(), cohort_of([[1, 0], [1, 0], [-1, 0], [-1, 0]]), None) == [1, 1, 1, 1]


def test_weak_opposition_rejects_nobody() -> None:
    # cos(100°) = −0.17 between the clusters, as with honest clients and different data.
    rows = cohort_of([[1, 0], [1, 0], [-0.1736, 0.9848]])
    assert weights_of(OpposedClusters(), rows, None) == [1, 1, 1]
    assert weights_of(OpposedClusters(min_opposition=0.1), rows, None) == [1, 1, 0]


def test_only_opposed_members_of_the_smaller_cluster_are_rejected() -> None:
    # The fifth belongs to the cluster of the fourth and is orthogonal to the others.
    rows = [[1, 0, 0], [1, 0.1, 0], [1, -0.1, 0], [-1, 0, 0.5], [0, 0, 1]]
    judgment, _ = OpposedClusters()(weights_only(rows), None)
    assert judgment.weights.tolist() == [True, True, True, False, True]
    assert judgment.scores.tolist()[4] == pytest.approx(0, abs=1e-6)
    assert judgment.scores.tolist()[3] == pytest.approx(0.8944 * (1 + 2 * 0.9950) / 3, abs=1e-3)


def test_agreeing_single_and_zero_updates_are_accepted() -> None:
    assert weights_of(OpposedClusters(), cohort_of([[1, 2]]), None) == [1]
    assert weights_of(OpposedClusters(), cohort_of([[1, 2]] * 4), None) == [1] * 4
    assert weights_of(OpposedClusters(), cohort_of([[0, 0], [0, 0], [1, 0]]), None) == [1] * 3


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(3, 8), st.sampled_from([0.0, 0.2, 0.3]))
def test_slow_twin(seed: int, n: int, min_opposition: float) -> None:
    """The leading eigenvector by power iteration, the rest by plain loops."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 5, generator=rng, dtype=torch.float64)
    rows[: n // 3] -= 2 * rows.mean(dim=0)
    similarity = torch.tensor([[slow_cosine(a, b) for b in rows.tolist()] for a in rows.tolist()], dtype=torch.float64)
    vector = torch.randn(n, generator=rng, dtype=torch.float64)
    for _ in range(2_000):
        vector = similarity @ vector
        vector /= vector.norm()
    values = torch.linalg.eigvalsh(similarity)
    assume(float(values[-1] - values[-2]) > 0.05 and float(vector.abs().min()) > 1e-6)
    ours = [i for i in range(n) if vector[i] > 0]
    theirs = [i for i in range(n) if vector[i] <= 0]
    expected = [True] * n
    if ours and theirs and len(ours) != len(theirs):
        cross = [float(similarity[i, j]) for i in ours for j in theirs]
        winners, losers = (ours, theirs) if len(ours) > len(theirs) else (theirs, ours)
        if sum(cross) / len(cross) < -min_opposition:
            for i in losers:
                against = [float(similarity[i, j]) for j in winners]
                expected[i] = not sum(against) / len(against) < -min_opposition
    assert OpposedClusters(min_opposition)(weights_only(rows), None)[0].weights.tolist() == expected


@pytest.mark.parametrize("min_opposition", [-0.1, 1.0, float("nan")])
def test_a_wrong_option_is_refused(min_opposition: float) -> None:
    with pytest.raises(ValueError, match=r"OpposedClusters.min_opposition must be in \[0, 1\)"):
        OpposedClusters(min_opposition)
