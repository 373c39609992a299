"""Multi-Metrics, LASA, AlignIns, FreqFed and CRFL, by hand and by slow twins."""

from __future__ import annotations

import math
from statistics import median, pstdev
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense, Filter, Layout
from cosdefense.aggregators import CRFL, Mean
from cosdefense.filters import LASA, AlignIns, FreqFed, MultiMetrics
from cosdefense.filters.alignins import principal_sign_shares
from cosdefense.ops import kth_largest, low_frequencies, manhattan_distances, z_scores
from doubles import slow_cosine


def cohort_of(rows: Any, params: Any = None, shapes: Any = None) -> Cohort:
    updates = torch.as_tensor(rows, dtype=torch.float64)
    d = updates.shape[1]
    start = torch.zeros(d) if params is None else torch.tensor(params)
    return Cohort.of(updates, start.double(), Layout(shapes or (("w", (d,)),), None, d))


def combined(part: Filter, cohort: Cohort) -> list[float]:
    defense = Defense((part,), Mean())
    found: list[float] = defense(cohort, defense.init())[0].update.tolist()
    return found


numbers = st.integers(-9, 9).map(float)


def tables(columns: int, least: int = 1) -> Any:
    return st.lists(st.lists(numbers, min_size=columns, max_size=columns), min_size=least, max_size=7)


# Statistics


@given(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=8))
def test_slow_twin_of_z_scores(values: list[float]) -> None:
    spread = pstdev(values)
    expected = [abs(value - median(values)) / spread if spread > 1e-9 else 0 for value in values]
    assert z_scores(torch.tensor(values, dtype=torch.float64)).tolist() == pytest.approx(expected)


def test_equal_numbers_do_not_deviate() -> None:
    assert z_scores(torch.full((7,), 0.1)).tolist() == [0] * 7  # a mean of 0.1 is off by a bit
    assert z_scores(torch.tensor([1e300, -1e300, 0.0], dtype=torch.float64)).isfinite().all()


@given(st.lists(numbers, min_size=1, max_size=9), st.data())
def test_kth_largest(values: list[float], data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, len(values)))
    assert float(kth_largest(torch.tensor(values), rank)) == sorted(values, reverse=True)[rank - 1]


# Multi-Metrics

OUTLIER = [[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1], [3, -2, 0]]


def test_pinned_multi_metrics() -> None:
    judgment, _ = MultiMetrics(0.4)(cohort_of(OUTLIER), None)
    assert judgment.scores.tolist() == pytest.approx([70.681256, 50.773517, 53.515921, 31.786700, 60.502456], abs=1e-5)
    assert judgment.weights.tolist() == [0, 1, 0, 1, 0]  # the outlier is only the second worst


def test_one_client_always_stays() -> None:
    assert float(MultiMetrics(0.3)(cohort_of(OUTLIER[:3]), None)[0].weights.sum()) == 1
    assert MultiMetrics()(cohort_of(OUTLIER[:1]), None)[0].weights.tolist() == [1]


@given(tables(3, least=5))
def test_slow_twin_of_multi_metrics(rows: list[list[float]]) -> None:
    origin = [20.0, 1.0, -3.0]
    models = [[a + b for a, b in zip(row, origin, strict=True)] for row in rows]
    t = np.array(
        [
            [
                math.fsum((1 - slow_cosine(a, b)) ** 2 for b in models if b is not a),
                math.fsum(sum(abs(x - y) for x, y in zip(a, b, strict=True)) for b in models if b is not a),
                math.fsum(abs(math.hypot(*a) - math.hypot(*b)) for b in models if b is not a),
            ]
            for a in models
        ]
    )
    scaled = t / np.maximum(t.max(axis=0), 1e-12)
    covariance = np.cov(scaled.T)
    if np.linalg.cond(covariance) > 1e6:
        return  # nearly singular: the digits that are left are not worth comparing
    expected = np.einsum("ij,jk,ik->i", scaled, np.linalg.inv(covariance), scaled)
    found = MultiMetrics()(cohort_of(rows, origin), None)[0].scores
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


@given(tables(3))
def test_slow_twin_of_manhattan_distances(rows: list[list[float]]) -> None:
    expected = [[sum(abs(x - y) for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]
    assert manhattan_distances(torch.tensor(rows)).tolist() == expected


# LASA

TWO_TENSORS = (("a", (2,)), ("b", (2,)))
LAYERED = [[1, 1, 2, -1], [1, 2, 2, -1], [2, 1, 1, -2], [1, 1, 2, -2], [-4, -4, 2, -1]]


def test_pinned_lasa() -> None:
    judgment, _ = LASA(sparsity=0.0)(cohort_of(LAYERED, shapes=TWO_TENSORS), None)
    assert judgment.scores.tolist() == [0.5, 0, 0, 1, 1]  # kept {1, 2} and {0, 1, 2}
    assert judgment.weights.tolist() == [1] * 5
    result = combined(LASA(sparsity=0.0), cohort_of(LAYERED, shapes=TWO_TENSORS))
    assert result == pytest.approx([1.5, 1.5, 1.666667, -1.333333], abs=1e-6)


def test_pinned_sparsity() -> None:
    """The authors' strict test would also drop the last one kept."""
    matrix = (("a", (2, 2)),)
    row = [[3, -1, 0.5, 2]]
    assert combined(LASA(sparsity=0.5), cohort_of(row, shapes=matrix)) == [3, 0, 0, 2]
    assert combined(LASA(sparsity=0.5, dense=True), cohort_of(row, shapes=matrix)) == [3, -1, 0.5, 2]
    vector_too = (("a", (1, 2)), ("bias", (2,)))
    assert combined(LASA(sparsity=0.5), cohort_of(row, shapes=vector_too)) == [3, 0, 0.5, 2]  # vectors stay whole


@given(tables(5, least=2), st.sampled_from([0.0, 0.25, 0.5]), st.booleans())
def test_slow_twin_of_lasa(rows: list[list[float]], sparsity: float, dense: bool) -> None:
    shapes = (("a", (2, 2)), ("b", (1,)))
    limit = median([math.hypot(*row) for row in rows])
    clipped = [[x * min(1, limit / (math.hypot(*row) or 1)) for x in row] for row in rows]
    n_kept = 4 - math.floor(sparsity * 4)
    sparse = []
    for row in clipped:
        least = sorted((abs(x) for x in row[:4]), reverse=True)[n_kept - 1]
        if any(0 < abs(abs(x) - least) < 1e-9 for x in row[:4]):
            return  # equal up to rounding
        sparse.append([x if k == 4 or abs(x) >= least else 0.0 for k, x in enumerate(row)])
    expected = []
    for columns in (range(4), range(4, 5)):
        lengths = [math.hypot(*(row[k] for k in columns)) for row in sparse]
        signs = [[(row[k] > 0) - (row[k] < 0) for k in columns] for row in sparse]
        balance = [sum(s) / max(1, sum(map(abs, s))) for s in signs]
        kept = set(range(len(rows)))
        for test in (lengths, balance):
            spread = pstdev(test)
            z = [abs(x - median(test)) / spread if spread > 1e-9 * max(1.0, *test) else 0 for x in test]
            if any(abs(value - 1) < 1e-6 for value in z):
                return  # on the limit: rounding decides
            kept -= {i for i, value in enumerate(z) if value >= 1}
        used = clipped if dense else sparse
        kept = kept or set(range(len(rows)))
        expected += [math.fsum(used[i][k] for i in kept) / len(kept) for k in columns]
    assert combined(LASA(sparsity, dense=dense), cohort_of(rows, shapes=shapes)) == pytest.approx(expected, abs=1e-9)


# AlignIns

ALIGNED = [
    [0.1, 0.2, 0.1, -0.1],
    [0.2, 0.1, 0, -0.2],
    [0.1, 0.3, -0.1, -0.1],
    [0, 0.2, 0.2, -0.1],
    [-0.4, 0.1, 0.5, 0.3],
]
MODEL = [1.0, 2.0, 0.0, -1.0]


def test_pinned_alignins() -> None:
    cohort = cohort_of(ALIGNED, MODEL)
    shares = principal_sign_shares(cohort.updates, 0.5)
    # The third row has three magnitudes of 0.1 for one place, two of them with the majority's sign. The card takes the
    # first and finds 1; here no position decides.
    assert shares.tolist() == pytest.approx([1, 1, 5 / 6, 1, 0.5])
    judgment, _ = AlignIns(0.5)(cohort, None)
    assert judgment.weights.tolist() == [True] * 4 + [False]
    assert combined(AlignIns(0.5), cohort) == pytest.approx([0.096651, 0.189952, 0.053349, -0.121651], abs=1e-6)


@given(tables(4), st.sampled_from([0.25, 0.5, 1.0]))
def test_slow_twin_of_sign_shares(rows: list[list[float]], fraction: float) -> None:
    def sign(x: float) -> int:
        return (x > 0) - (x < 0)

    principal = [sign(sum(sign(row[k]) for row in rows)) for k in range(4)]
    n_largest = int(4 * fraction)
    for row, found in zip(rows, principal_sign_shares(torch.tensor(rows), fraction).tolist(), strict=True):
        agrees = [sign(x) == p for x, p in zip(row, principal, strict=True)]
        least = sorted(map(abs, row), reverse=True)[n_largest - 1]
        above = [a for a, x in zip(agrees, row, strict=True) if abs(x) > least]
        tied = [a for a, x in zip(agrees, row, strict=True) if abs(x) == least]
        assert found == pytest.approx((sum(above) + (n_largest - len(above)) * sum(tied) / len(tied)) / n_largest)


def test_nobody_is_usual() -> None:
    defense = Defense((AlignIns(max_cosine=1e-9),), Mean())
    verdict, _ = defense(cohort_of([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0]), defense.init())
    assert verdict.skipped == "every client was rejected"


# FreqFed

WAVES = [[1, 2, 3, 4], [1, 2, 3, 5], [2, 2, 3, 4], [4, 3, 2, -1], [1, 3, 3, 4]]


def test_pinned_freqfed() -> None:
    low = low_frequencies(torch.tensor(WAVES, dtype=torch.float64), 2).tolist()
    expected = [[5, -2.230442], [5.5, -2.883724], [5.5, -1.577161], [4, 3.537005], [5.5, -1.959844]]
    assert low == [pytest.approx(row, abs=1e-6) for row in expected]
    judgment, _ = FreqFed("updates")(cohort_of(WAVES), None)
    assert judgment.weights.tolist() == [True, True, True, False, True]
    # The sum of model and update is transformed, wherever the model is.
    shifted = cohort_of((torch.tensor(WAVES) - torch.tensor([5, 1, 0, 2])).tolist(), [5.0, 1.0, 0.0, 2.0])
    assert torch.allclose(FreqFed()(shifted, None)[0].scores, judgment.scores)


def test_freqfed_of_a_model_whose_frequencies_are_too_large_for_float32() -> None:
    """An attack can move a model that far. The round must not fail."""
    huge = Cohort.of(torch.eye(5, 8), torch.full((8,), 3e38), Layout((("w", (8,)),), None, 8))
    judgment, _ = FreqFed()(huge, None)
    assert bool(judgment.scores.isfinite().all())
    assert int(judgment.weights.sum()) >= 3


@given(st.lists(numbers, min_size=2, max_size=9))
def test_slow_twin_of_the_cosine_transform(values: list[float]) -> None:
    n = len(values)
    (found,) = low_frequencies(torch.tensor([values], dtype=torch.float64), max(1, n // 2)).tolist()
    for k, value in enumerate(found):
        total = math.fsum(x * math.cos(math.pi * (i + 0.5) * k / n) for i, x in enumerate(values))
        assert value == pytest.approx(total * math.sqrt((1 if k == 0 else 2) / n), abs=1e-9)


# CRFL


def test_pinned_crfl() -> None:
    cohort = cohort_of([[1, 0], [0, 3], [2, 3]], [3.0, 4.0])
    part = CRFL(start=5.0, growth=0.0, max_norm=5.0, std=0.0)
    update, state = part(cohort, part.init())
    assert update.tolist() == pytest.approx([-0.226499, 0.160251], abs=1e-6)
    assert state == 1
    assert torch.equal(CRFL(start=9.0, std=0.0)(cohort, 0)[0], Mean()(cohort, None)[0])  # nothing is clipped


@given(tables(3), st.integers(0, 30))
def test_slow_twin_of_crfl(rows: list[list[float]], number: int) -> None:
    """The model after the mean, shortened to the limit of the round, minus the model before."""
    params = [3.0, -1.0, 0.5]
    moved = [w + sum(column) / len(rows) for w, column in zip(params, zip(*rows, strict=True), strict=True)]
    limit = min(0.1 * number + 2, 4)
    factor = min(1, limit / max(math.hypot(*moved), 1e-12))
    expected = [x * factor - w for x, w in zip(moved, params, strict=True)]
    update, after = CRFL(max_norm=4.0, std=0.0)(cohort_of(rows, params), number)
    assert update.tolist() == pytest.approx(expected, abs=1e-9)
    assert after == number + 1


def test_the_norm_grows_over_rounds() -> None:
    part, cohort = CRFL(start=2.0, growth=0.5, max_norm=3.0, std=0.0), cohort_of([[300.0, 400.0]])
    norms, state = [], part.init()
    for _ in range(4):
        update, state = part(cohort, state)
        norms.append(float(update.norm()))
    assert norms == pytest.approx([2, 2.5, 3, 3])


def test_the_noise_of_crfl() -> None:
    cohort = cohort_of(torch.zeros(1, 100_000).tolist())
    update, _ = CRFL(std=0.25)(cohort, 0)
    assert float(update.std()) == pytest.approx(0.25, rel=0.02)
    layout = Layout((("w", (1,)), ("norm.running_mean", (1,))), "w", 1)
    both = Cohort.of(torch.tensor([[1.0, 7.0]]), torch.zeros(2), layout)
    assert float(CRFL(std=0.25)(both, 0)[0][1]) == 7  # a buffer


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: MultiMetrics(0.0), r"MultiMetrics.share must be in \(0, 1\], got 0.0"),
        (lambda: LASA(sparsity=1.0), r"LASA.sparsity must be in \[0, 1\), got 1.0"),
        (lambda: LASA(max_norm_deviation=0.0), r"LASA.max_norm_deviation must be positive and finite, got 0.0"),
        (lambda: AlignIns(fraction=0.0), r"AlignIns.fraction must be in \(0, 1\], got 0.0"),
        (lambda: AlignIns(max_sign=-1.0), r"AlignIns.max_sign must be positive and finite, got -1.0"),
        (lambda: CRFL(start=20.0), r"CRFL needs 0 < start <= max_norm, got 20.0 and 15.0"),
        (lambda: CRFL(std=-1.0), r"CRFL.std must be at least 0 and finite, got -1.0"),
    ],
)
def test_mistakes_are_named(make: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()
