"""Factions against its definition: by hand, and by trying all ways to divide a small cohort in two."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cosdefense.filters import OpposedClusters
from doubles import cohort_of, slow_cosine, weights_of, weights_only


def test_the_smaller_of_two_camps_is_rejected() -> None:
    assert weights_of(OpposedClusters(), cohort_of([[1, 0.1], [1, -0.1], [2, 0], [-5, 0.1], [-5, 0]]), None) == [
        1,
        1,
        1,
        0,
        0,
    ]


def test_votes_decide_not_heads() -> None:
    """Two echoes that a filter before has taken for one voice lose against two voices."""
    cohort = cohort_of([[1, 0.1], [1, -0.1], [-5, 0], [-5, 0], [-5, 0]])
    assert weights_of(OpposedClusters(), cohort, None) == [0, 0, 1, 1, 1]
    once = replace(cohort, weights=torch.tensor([1, 1, 1 / 3, 1 / 3, 1 / 3], dtype=torch.float64))
    assert weights_of(OpposedClusters(), once, None) == [1, 1, 0, 0, 0]


def test_a_tie_decides_nothing() -> None:
    assert weights_of(OpposedClusters(), cohort_of([[1, 0], [-1, 0]]), None) == [1, 1]
    assert weights_of(OpposedClusters(), cohort_of([[1, 0], [1, 0], [-1, 0], [-1, 0]]), None) == [1, 1, 1, 1]


def test_disagreement_is_no_quarrel() -> None:
    # cos(100°) = −0.17 between the camps: honest clients with different data.
    rows = cohort_of([[1, 0], [1, 0], [-0.1736, 0.9848]])
    assert weights_of(OpposedClusters(), rows, None) == [1, 1, 1]
    assert weights_of(OpposedClusters(min_opposition=0.1), rows, None) == [1, 1, 0]


def test_of_the_weaker_camp_only_those_who_pull_against_the_other_are_rejected() -> None:
    # The fifth belongs to the fourth rather than to the others, and is at right angles to them.
    rows = [[1, 0, 0], [1, 0.1, 0], [1, -0.1, 0], [-1, 0, 0.5], [0, 0, 1]]
    judgment, _ = OpposedClusters()(weights_only(rows), None)
    assert judgment.weights.tolist() == [True, True, True, False, True]
    assert judgment.scores.tolist()[4] == pytest.approx(0, abs=1e-6)
    assert judgment.scores.tolist()[3] == pytest.approx(0.8944 * (1 + 2 * 0.9950) / 3, abs=1e-3)


def test_agreement_and_solitude() -> None:
    assert weights_of(OpposedClusters(), cohort_of([[1, 2]]), None) == [1]
    assert weights_of(OpposedClusters(), cohort_of([[1, 2]] * 4), None) == [1] * 4
    assert weights_of(OpposedClusters(), cohort_of([[0, 0], [0, 0], [1, 0]]), None) == [1] * 3


@given(st.integers(0, 10_000), st.integers(3, 8), st.sampled_from([0.0, 0.2, 0.3]))
def test_like_the_best_of_all_divisions(seed: int, n: int, min_opposition: float) -> None:
    """The leading eigenvector's signs are found here by power iteration, the rest by plain loops."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 5, generator=rng, dtype=torch.float64)
    rows[: n // 3] -= 2 * rows.mean(dim=0)
    likeness = torch.tensor([[slow_cosine(a, b) for b in rows.tolist()] for a in rows.tolist()], dtype=torch.float64)
    vector = torch.randn(n, generator=rng, dtype=torch.float64)
    for _ in range(2_000):
        vector = likeness @ vector
        vector /= vector.norm()
    values = torch.linalg.eigvalsh(likeness)
    assume(float(values[-1] - values[-2]) > 0.05 and float(vector.abs().min()) > 1e-6)
    ours = [i for i in range(n) if vector[i] > 0]
    theirs = [i for i in range(n) if vector[i] <= 0]
    expected = [True] * n
    if ours and theirs and len(ours) != len(theirs):
        cross = [float(likeness[i, j]) for i in ours for j in theirs]
        winners, losers = (ours, theirs) if len(ours) > len(theirs) else (theirs, ours)
        if sum(cross) / len(cross) < -min_opposition:
            for i in losers:
                against = [float(likeness[i, j]) for j in winners]
                expected[i] = not sum(against) / len(against) < -min_opposition
    assert OpposedClusters(min_opposition)(weights_only(rows), None)[0].weights.tolist() == expected


@pytest.mark.parametrize("min_opposition", [-0.1, 1.0, float("nan")])
def test_nonsense_is_refused(min_opposition: float) -> None:
    with pytest.raises(ValueError, match=r"OpposedClusters.min_opposition must be in \[0, 1\)"):
        OpposedClusters(min_opposition)
