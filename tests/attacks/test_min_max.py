"""Min-Max and Min-Sum against the authors' search in numpy, and their promise: no farther out than honest clients."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Attack
from cosdefense.attacks import MinMax, MinSum
from doubles import cohort_of
from shapes import unchecked

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def largest_distance(row: Numbers, honest: Numbers) -> float:
    return float(((honest - row) ** 2).sum(axis=1).max())


def sum_of_distances(row: Numbers, honest: Numbers) -> float:
    return float(((honest - row) ** 2).sum())


def allowed(attack: Attack, honest: Numbers) -> float:
    """Squared: what the honest clients reach themselves."""
    if isinstance(attack, MinMax):
        return max(largest_distance(row, honest) for row in honest)
    sums = [sum_of_distances(row, honest) for row in honest]
    return max(sums) if isinstance(attack, MinSum) and attack.bound == "max" else min(sums)


def reached(attack: Attack) -> Callable[[Numbers, Numbers], float]:
    return largest_distance if isinstance(attack, MinMax) else sum_of_distances


def perturbation(honest: Numbers, direction: str) -> Numbers:
    mean: Numbers = honest.mean(axis=0)
    if direction == "unit":
        length = float(np.linalg.norm(mean))
        return -mean / (length or 1.0)
    return -np.sign(mean) if direction == "sign" else -honest.std(axis=0)


def searched(attack: Attack, honest: Numbers, direction: str) -> Numbers:
    """γ by bisection, as the authors look for it."""
    mean, p = honest.mean(axis=0), perturbation(honest, direction)
    low, high = 0.0, 1e9
    if not p.any():
        return np.asarray(mean)
    for _ in range(200):
        middle = (low + high) / 2
        fits = reached(attack)(mean + middle * p, honest) <= allowed(attack, honest)
        low, high = (middle, high) if fits else (low, middle)
    return np.asarray(mean + low * p)


CASES = [
    kind(direction, knowledge, *more)
    for kind, more in ((MinMax, ()), (MinSum, ("max",)), (MinSum, ("min",)))
    for direction in ("unit", "sign", "std")
    for knowledge in ("full", "partial")
]


def test_pinned_min_max() -> None:
    # Mean (1, 0), against it: 1 − γ. The two farthest are 6 apart: √((x)² + 3²) ≤ 6 for both, and |x − 3| ≤ 6 for the
    # third; so 1 − γ = x ≥ −3 decides. Statistics (−3, −2, −1; mean −2) go along: −2 / ‖(1, 0)‖ per unit of γ.
    cohort = cohort_of([[0.0, 3.0], [0.0, -3.0], [3.0, 0.0], [50.0, 50.0]])
    forged, _ = MinMax().forge(cohort, torch.arange(4) == 3, None)
    assert forged[3].tolist() == pytest.approx([-3, 0, -2 + 4 * 2], abs=1e-12)


def test_pinned_min_sum() -> None:
    # Sums of squares: (0, 3) has 36 + 18 = 54, (3, 0) has 36. From (x, 0): 2 (x² + 9) + (x − 3)² = 3 x² − 6 x + 27.
    # At most 54: x² − 2 x − 9 = 0, x = 1 − √10. At most 36: x² − 2 x − 3 = 0, x = −1.
    cohort = cohort_of([[0.0, 3.0], [0.0, -3.0], [3.0, 0.0], [50.0, 50.0]])
    largest, _ = MinSum().forge(cohort, torch.arange(4) == 3, None)
    assert largest[3, :2].tolist() == pytest.approx([1 - 10**0.5, 0], abs=1e-12)
    smallest, _ = MinSum(bound="min").forge(cohort, torch.arange(4) == 3, None)
    assert smallest[3, :2].tolist() == pytest.approx([-1, 0], abs=1e-12)


@pytest.mark.parametrize("attack", CASES, ids=repr)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_no_farther_than_honest_clients_and_not_a_step_nearer(attack: MinMax | MinSum, scale: float) -> None:
    rows = scale * (0.2 + np.random.default_rng(0).normal(size=(12, 3)))
    rows[:, 2] *= 1000  # a statistic, which no distance sees
    malicious = torch.arange(12) >= 8
    forged, _ = attack.forge(cohort_of(rows), malicious, None)
    honest = rows[:8, :2] if attack.knowledge == "full" else rows[8:, :2]
    sent = forged[8, :2].numpy()
    bound, measure = allowed(attack, honest), reached(attack)
    assert measure(sent, honest) <= bound * (1 + 1e-9)
    step = sent - honest.mean(axis=0)
    assert float(np.linalg.norm(step)) > 0.01 * scale
    assert measure(honest.mean(axis=0) + 1.001 * step, honest) > bound
    assert bool((forged[8:] == forged[8]).all())


whole = st.integers(-20, 20).map(float)


@given(
    st.lists(st.lists(whole, min_size=2, max_size=2), min_size=1, max_size=6),
    st.lists(st.lists(whole, min_size=2, max_size=2), min_size=1, max_size=3),
    st.sampled_from(CASES),
)
def test_slow_twin(honest: list[list[float]], own: list[list[float]], attack: MinMax | MinSum) -> None:
    malicious = torch.arange(len(honest) + len(own)) >= len(honest)
    forged, _ = attack.forge(cohort_of([*honest, *own]), malicious, None)
    known = np.array(honest if attack.knowledge == "full" else own)
    expected = searched(attack, known, attack.direction)
    # Where the honest clients stand together, rounding decides about the last 1e-7.
    assert forged[-1, :2].numpy() == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_nobody_to_know() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 2))
    for attack in (MinMax(), MinSum()):
        everybody, _ = attack.forge(cohort_of(rows), torch.ones(5, dtype=torch.bool), None)
        assert everybody[0, :2].numpy() == pytest.approx(searched(attack, rows, "unit"), abs=1e-6)
        nobody, _ = attack.forge(cohort_of(rows), torch.zeros(5, dtype=torch.bool), None)
        assert nobody[:, :2].numpy().tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("part", "options", "complaint"),
    [
        (MinMax, {"direction": "up"}, "direction must be one of ('unit', 'sign', 'std'), got 'up'"),
        (MinSum, {"direction": "up"}, "direction must be one of ('unit', 'sign', 'std'), got 'up'"),
        (MinMax, {"knowledge": "none"}, "knowledge must be one of ('full', 'partial'), got 'none'"),
        (MinSum, {"knowledge": "none"}, "knowledge must be one of ('full', 'partial'), got 'none'"),
        (MinSum, {"bound": "mean"}, "bound must be one of ('max', 'min'), got 'mean'"),
    ],
)
def test_mistakes_are_named(part: Callable[..., Attack], options: dict[str, str], complaint: str) -> None:
    with unchecked(), pytest.raises(ValueError, match=re.escape(complaint)):
        part(**options)
