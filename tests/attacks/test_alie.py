"""A Little Is Enough: the paper's z by hand, and a reference implementation in numpy."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense.attacks import ALIE
from doubles import cohort_of
from shapes import unchecked

ROWS = [[1.0, 10.0, 0.0], [3.0, 10.0, 4.0], [99.0, -99.0, 99.0]]
MALICIOUS = torch.tensor([False, False, True])


def test_pinned_deviations() -> None:
    # The honest rows: mean (2, 10, 2), population deviations (1, 0, 2). Statistics go the same way.
    forged, _ = ALIE(z=1.5).forge(cohort_of(ROWS), MALICIOUS, None)
    assert forged[2].tolist() == [0.5, 10, -1]
    other_side, _ = ALIE(z=-1.5).forge(cohort_of(ROWS), MALICIOUS, None)
    assert other_side[2].tolist() == [3.5, 10, 5]


@pytest.mark.parametrize(
    ("n", "m", "share"),
    [
        # s = ⌊n / 2 + 1⌋ − m: 26 − 12 = 14 of 38 (about the paper's example), 6 − 4 = 2 of 6, 6 − 3 = 3 of 7.
        (50, 12, 24 / 38),
        (10, 4, 4 / 6),
        (10, 3, 4 / 7),
        (11, 5, 5 / 6),
    ],
)
def test_pinned_z(n: int, m: int, share: float) -> None:
    rows = np.random.default_rng(n).normal(size=(n, 3))
    malicious = torch.arange(n) < m
    forged, _ = ALIE().forge(cohort_of(rows), malicious, None)
    z = (rows[m:].mean(axis=0) - forged[0].numpy()) / rows[m:].std(axis=0)
    assert z == pytest.approx([NormalDist().inv_cdf(share)] * 3)


def test_too_few_attackers_send_the_mean_and_a_majority_has_a_limit() -> None:
    rows = np.random.default_rng(0).normal(size=(10, 3))
    few, _ = ALIE().forge(cohort_of(rows), torch.arange(10) < 1, None)  # 5 supporters of 9: below the median
    assert few[0].numpy() == pytest.approx(rows[1:].mean(axis=0))
    many, _ = ALIE(max_z=2.5).forge(cohort_of(rows), torch.arange(10) < 6, None)
    assert many[0].numpy() == pytest.approx(rows[6:].mean(axis=0) - 2.5 * rows[6:].std(axis=0))


def test_a_lower_limit_makes_few_attackers_strong() -> None:
    """One of ten gets z = 0 from the formula, four of ten 0.43."""
    rows = np.random.default_rng(0).normal(size=(10, 3))
    for m, z in ((1, 1.5), (2, 1.5), (4, 1.5), (6, 3.0)):
        forged, _ = ALIE(min_z=1.5).forge(cohort_of(rows), torch.arange(10) < m, None)
        assert forged[0].numpy() == pytest.approx(rows[m:].mean(axis=0) - z * rows[m:].std(axis=0))
    low, _ = ALIE(min_z=0.1).forge(cohort_of(rows), torch.arange(10) < 4, None)
    assert torch.equal(low[0], ALIE().forge(cohort_of(rows), torch.arange(10) < 4, None)[0][0])


@pytest.mark.parametrize(
    ("n", "m", "z"),
    [(10, 3, 0.180), (10, 4, 0.431), (20, 4, 0.157), (20, 8, 0.674), (25, 5, 0.253), (50, 10, 0.253), (50, 24, 1.426),
     (100, 20, 0.286), (100, 30, 0.524)],
)  # fmt: skip
def test_z_of_usual_federations(n: int, m: int, z: float) -> None:
    """As other public code computes them, to three digits."""
    assert ALIE()._compute_z(n, m) == pytest.approx(z, abs=5e-4)


def test_population_or_sample_deviation() -> None:
    """Four honest clients: z = 1 in population deviations; in sample deviations √(4 / 3) as far."""
    rows = [[1.0, 0.0], [2.0, 1.0], [3.0, 2.0], [2.0, 1.0], [0.0, 0.0]]
    mask = torch.arange(5) == 4
    forged, _ = ALIE(z=1.0).forge(cohort_of(rows), mask, None)
    assert forged[4, :2].tolist() == pytest.approx([1.292893, 0.292893], abs=1e-6)
    forged, _ = ALIE(z=math.sqrt(4 / 3)).forge(cohort_of(rows), mask, None)
    assert forged[4, :2].tolist() == pytest.approx([1.183503, 0.183503], abs=1e-6)


def test_attackers_go_by_their_own_rows_with_partial_knowledge() -> None:
    rows = np.random.default_rng(0).normal(size=(10, 3))
    malicious = torch.arange(10) < 4
    forged, _ = ALIE(z=1.0, knowledge="partial").forge(cohort_of(rows), malicious, None)
    assert forged[0].numpy() == pytest.approx(rows[:4].mean(axis=0) - rows[:4].std(axis=0))
    everybody, _ = ALIE(z=1.0).forge(cohort_of(rows), torch.ones(10, dtype=torch.bool), None)
    assert everybody[0].numpy() == pytest.approx(rows.mean(axis=0) - rows.std(axis=0))
    nobody, _ = ALIE().forge(cohort_of(rows), torch.zeros(10, dtype=torch.bool), None)
    assert nobody.numpy().tolist() == rows.tolist()


whole = st.integers(-50, 50).map(float)


@given(st.lists(st.lists(whole, min_size=3, max_size=3), min_size=2, max_size=12), st.integers(1, 6))
def test_slow_twin(rows: list[list[float]], m: int) -> None:
    """The formula in numpy; and |sent − μ| ≤ z σ in every coordinate."""
    m = min(m, len(rows) - 1)
    n, known = len(rows), np.array(rows[m:])
    supporters = n // 2 + 1 - m
    share = 1.0 if supporters <= 0 else (n - m - supporters) / (n - m)
    z = 3.0 if share >= 1 else max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0
    forged, _ = ALIE().forge(cohort_of(rows), torch.arange(n) < m, None)
    for row in forged[:m].numpy():
        assert row == pytest.approx(known.mean(axis=0) - z * known.std(axis=0), abs=1e-9)
        assert bool((np.abs(row - known.mean(axis=0)) <= z * known.std(axis=0) + 1e-9).all())


def test_mistakes_are_named() -> None:
    with unchecked(), pytest.raises(ValueError, match=r"knowledge must be one of \('full', 'partial'\), got 'none'"):
        ALIE(knowledge="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ALIE.z must be finite, got inf"):
        ALIE(z=math.inf)
    with pytest.raises(ValueError, match=r"ALIE.max_z must be at least 0 and finite, got -1.0"):
        ALIE(max_z=-1.0)
    with pytest.raises(ValueError, match=r"ALIE.min_z must be from 0 to max_z = 3.0, got 4.0"):
        ALIE(min_z=4.0)
