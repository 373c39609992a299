"""The fast kernels against slow definitions in float64, on what hostile clients may send."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import Cohort, Defense, Layout, ops
from cosdefense.aggregators import Bulyan, Mean
from cosdefense.aggregators.bulyan import select_by_krum
from cosdefense.filters import MultiKrum
from cosdefense.ops import blocks, coordinatewise, distances, norms
from cosdefense.ops.sorting_networks import comparators

# Ties, nearly equal values, outliers: what sorting and cancelling get wrong.
number = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.0000001, -1.0, 1e30, -1e30, 3e38, -3e38, 1e-30, 1e-45]),
    st.floats(-1e3, 1e3, width=32),
)
whole = st.one_of(st.integers(-9, 9), st.sampled_from([2**40, -(2**40)])).map(float)  # sums are exact, ties are ties
matrices = st.integers(1, 12).flatmap(
    lambda k: st.lists(st.lists(number, min_size=k, max_size=k), min_size=1, max_size=13)
)


@pytest.fixture(params=[0, 100], ids=["products", "differences"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances of few rows come from their differences, those of many from products: both must be right for any."""
    monkeypatch.setattr(distances, "FEW", request.param)


def exact_squares(rows: Tensor) -> list[list[float]]:
    """In integers: every float is a whole multiple of the same power of two."""
    ratios = [[x.as_integer_ratio() for x in row] for row in rows.tolist()]
    unit = max(denominator for row in ratios for _, denominator in row)
    values = [[numerator * (unit // denominator) for numerator, denominator in row] for row in ratios]
    return [[sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / unit**2 for b in values] for a in values]


@pytest.mark.usefixtures("both_ways")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same for all examples
@given(matrices)
def test_distances_of_hostile_rows(values: list[list[float]]) -> None:
    rows = torch.tensor(values)
    found = ops.squared_distances(rows)
    for got, expected in zip(found.tolist(), exact_squares(rows), strict=True):
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-80)
    assert torch.equal(found, found.T)


def clustered(dtype: torch.dtype) -> Tensor:
    """Clusters within clusters, identical rows, and rows far out: every pair needs a center of its own."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(24, 300, generator=rng, dtype=torch.float64)
    rows[4:12] = 1e6 + rows[4:12]
    rows[12:16] = rows[12] + 1e-5 * rows[12:16]
    rows[16:20] = rows[16]
    rows[20:22] *= 1e30
    rows[23] = rows[22] + 1e-7
    return rows.to(dtype)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_of_clusters(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops.blocks, "BLOCK", 1000)
    rows = clustered(dtype)
    found = ops.squared_distances(rows)
    assert torch.allclose(found, torch.tensor(exact_squares(rows), dtype=torch.float64), rtol=1e-9, atol=0)
    assert torch.equal(found[16:20], found[16:17].expand(4, -1))  # twins are alike to the bit
    assert torch.equal(found, found.T)


def test_twins_are_alike_wherever_they_stand() -> None:
    """The products of the first and of the last row are not summed in the same order; ties must stay ties."""
    rows = torch.randn(45, 3001, generator=torch.Generator().manual_seed(0))
    rows[[7, 31, 44]] = rows[0].clone()
    found = ops.squared_distances(rows)
    assert torch.equal(found[[7, 31, 44]], found[[0, 0, 0]])
    assert found[0, 44] == 0


@cache
def close_calls(scale: float) -> tuple[Tensor, Tensor]:
    """Orthogonal rows of nearly equal length, whose scores agree up to `scale`, and their exact scores."""
    rng = torch.Generator().manual_seed(1)
    base = torch.randn(4000, 10, generator=rng, dtype=torch.float64)
    rows = (torch.linalg.qr(base)[0].T * (1 + scale * torch.rand(10, 1, generator=rng))).float()
    exact = torch.tensor(exact_squares(rows), dtype=torch.float64).fill_diagonal_(torch.inf)
    return rows, exact.sort(dim=1).values[:, :5].sum(dim=1)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("keep", [1, 5, None])
def test_krum_decides_close_calls_as_exact_numbers_do(keep: int | None, scale: float) -> None:
    rows, scores = close_calls(scale)
    judgment, _ = MultiKrum(0.3, keep)(cohort_of(rows), None)
    assert judgment.weights.tolist() == (scores <= scores.sort().values[(keep or 7) - 1]).tolist()


@pytest.mark.usefixtures("both_ways")
def test_float64_rows_beyond_all_squares() -> None:
    values = [[1e200, 0.0], [1e200, 1.0], [-1.7e308, 1.0], [1.7e308, 2.0], [1.0, 1.0], [1.0, 3.0]]
    rows = torch.tensor(values, dtype=torch.float64)
    found = ops.squared_distances(rows)
    assert not bool(found.isnan().any())
    assert found[0, 1] == 1
    assert found[4, 5] == 4
    assert bool(found[2, [0, 1, 3, 4, 5]].isinf().all())
    assert bool(ops.geometric_median(rows).isfinite().all())


@given(matrices, st.integers(0, 6))
def test_order_statistics(values: list[list[float]], trim: int) -> None:
    trim = min(trim, (len(values) - 1) // 2)
    rows = torch.tensor(values)
    by_hand = [sorted(column) for column in zip(*rows.tolist(), strict=True)]
    half = [(column[(len(column) - 1) // 2], column[len(column) // 2]) for column in by_hand]
    middle = torch.tensor([a for a, _ in half]) * 0.5 + torch.tensor([b for _, b in half]) * 0.5
    assert torch.equal(ops.median(rows), middle)
    kept = [column[trim : len(column) - trim] for column in by_hand]
    assert (
        ops.trimmed_mean(rows, trim).tolist() == torch.tensor([_sum(column) / len(column) for column in kept]).tolist()
    )


def _sum(column: list[float]) -> float:
    """One after the other, as float64 adds them: the order is part of the definition, bit by bit."""
    total = column[0]
    for value in column[1:]:
        total += value
    return total


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 101])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_networks_and_sorts_agree(n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinatewise, "COLUMNS", 100)
    wide = torch.randn(n, 2 * 257, generator=torch.Generator().manual_seed(n), dtype=dtype)
    rows = wide[:, ::2]  # not contiguous
    found = []
    for network in (0, 1000):
        monkeypatch.setattr(coordinatewise, "NETWORK", network)
        found.append([ops.median(rows), ops.trimmed_mean(rows, (n - 1) // 3)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    ordered = rows.sort(dim=0).values
    assert torch.equal(found[0][0], ordered[(n - 1) // 2] * 0.5 + ordered[n // 2] * 0.5)


@pytest.mark.parametrize("n", range(1, 12))
def test_comparators_sort_zeros_and_ones(n: int) -> None:
    """A network that sorts all rows of zeros and ones sorts everything (Knuth's zero-one principle)."""
    patterns = torch.arange(1 << n)[None] >> torch.arange(n)[:, None] & 1
    rows = list(patterns)
    for low, high in comparators(n, range(n)):
        rows[low], rows[high] = torch.minimum(rows[low], rows[high]), torch.maximum(rows[low], rows[high])
    assert torch.equal(torch.stack(rows), patterns.sort(dim=0).values)


@pytest.mark.parametrize("n", [1, 7, 45])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_change_no_bit(n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who computes a stretch, and when, is nobody's business: sums over stretches are made in their order."""
    monkeypatch.setattr(blocks, "BLOCK", 40 * n)
    monkeypatch.setattr(coordinatewise, "COLUMNS", 100)
    rows = torch.randn(n, 3001, generator=torch.Generator().manual_seed(n), dtype=dtype)
    rules: list[Callable[[Tensor], Tensor]] = [
        ops.squared_distances, ops.cosines, ops.row_norms, ops.median, lambda rows: ops.row_norms(rows, rows[0])
    ]  # fmt: skip
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with torch.inference_mode(threads == 2):
                found.append([rule(rows.clone()) for rule in rules])
            with ThreadPoolExecutor(1) as later:
                assert torch.get_num_threads() == later.submit(torch.get_num_threads).result() == threads  # as it was
            assert ops.stays_finite(rows[0], rows[-1])
            assert not ops.stays_finite(rows[0], torch.where(torch.arange(3001) < 3000, 0, torch.inf))
    finally:
        torch.set_num_threads(before)
    for one, two, five in zip(*found, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, five)


def test_memory_of_blocks_is_kept_from_one_size_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call leaves behind may be too small for the next, or come from inference mode: neither may matter."""
    rows = torch.randn(3, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = rows.norm(dim=1)
    for size in (30, 3000, 30):
        monkeypatch.setattr(blocks, "BLOCK", size)
        for inferring in (True, False):
            with torch.inference_mode(inferring):
                assert torch.allclose(ops.row_norms(rows), expected)


def test_large_results_are_like_small_ones() -> None:
    """Their memory comes from elsewhere."""
    rows = torch.randn(2, (1 << 20) + 1, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.float64):
        found = ops.weighted_sum(rows.to(dtype), torch.tensor([0.25, 0.5]))
        assert found.dtype == dtype
        assert torch.allclose(found, rows[0].to(dtype) * 0.25 + rows[1].to(dtype) * 0.5)
        assert torch.equal(ops.median(rows[:1].to(dtype)), rows[0].to(dtype))


def test_no_columns_at_all() -> None:
    rows = torch.zeros(3, 0)
    assert ops.median(rows).shape == ops.trimmed_mean(rows, 1).shape == ops.weighted_sum(rows, torch.ones(3)).shape
    assert ops.squared_distances(rows).tolist() == [[0, 0, 0]] * 3
    assert ops.row_norms(rows).tolist() == [0, 0, 0]
    assert ops.finite_rows(rows).tolist() == [True] * 3


@given(st.lists(st.lists(whole, min_size=3, max_size=3), min_size=1, max_size=12), st.data())
def test_mean_near_the_median(values: list[list[float]], data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(values)))
    rows = torch.tensor(values, dtype=torch.float64)
    found = ops.mean_near_median(rows, keep, torch.arange(len(values)))
    for got, column in zip(found.tolist(), zip(*values, strict=True), strict=True):
        middle = statistics.median(column)
        nearest = sorted(column, key=lambda x: (abs(x - middle), x))[:keep]
        assert got == math.fsum(nearest) / keep


def cohort_of(rows: Tensor) -> Cohort:
    d = rows.shape[1]
    return Cohort.of(rows, torch.zeros(d, dtype=rows.dtype), Layout((("w", (d,)),), "w", d))


def test_bulyan_by_hand() -> None:
    # n = 7, f = 1 on a line. Krum takes 5, one after the other; of those the 3 nearest to their median are averaged.
    column = [0.0, 1.0, 2.0, 3.0, 4.0, 50.0, -100.0]
    rows = torch.tensor(column, dtype=torch.float64)[:, None]
    assert select_by_krum(ops.squared_distances(rows), 1).tolist() == [0, 1, 2, 3, 4]
    assert Bulyan(0.15)(cohort_of(rows), None)[0].tolist() == [2.0]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_geometric_median_is_the_best_point(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    for n in (3, 4, 9, 20):
        rows = torch.randn(n, 30, generator=rng, dtype=torch.float64)
        rows[0] *= 50
        found = ops.geometric_median(rows.to(dtype), steps=1000).double()
        least = _sum_of_distances(rows, found)
        for _ in range(50):
            elsewhere = found + 1e-2 * torch.randn(30, generator=rng, dtype=torch.float64)
            assert least <= _sum_of_distances(rows, elsewhere)


def _sum_of_distances(rows: Tensor, point: Tensor) -> float:
    return float((rows - point).norm(dim=1).sum())


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("size", [1e6, 1e30, 3e38])
def test_geometric_median_shrugs_off_outliers(size: float) -> None:
    rng = torch.Generator().manual_seed(0)
    honest = torch.randn(7, 50, generator=rng)
    outliers = size * torch.sign(torch.randn(3, 50, generator=rng))
    found = ops.geometric_median(torch.cat([outliers, honest]))
    assert float((found - honest.mean(dim=0)).norm()) < 2 * float(honest.norm(dim=1).max())
    exact = ops.geometric_median(torch.cat([outliers, honest]).double())
    assert torch.allclose(found.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("both_ways")
def test_geometric_median_when_an_outlier_looks_like_the_middle() -> None:
    """Ordinary for a thousand coordinates, far away after those: relative to such a row everything else cancels."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(9, 2000, generator=rng, dtype=torch.float64)
    middle = int(rows[:, :1024].square().sum(dim=1).argsort()[4])
    rows[middle, 1500:] = 1e12
    honest = torch.cat([rows[:middle], rows[middle + 1 :]])
    far = rows[middle] - honest.mean(dim=0)
    found = ops.geometric_median(rows, steps=1000)
    # At the best point the unit vectors towards all rows add up to nothing.
    pulls = honest - found
    total = (pulls / pulls.norm(dim=1, keepdim=True)).sum(dim=0) + far / far.norm()
    assert float(total.norm()) < 1e-4


@given(matrices, st.floats(0.01, 1e3), st.integers(1, 3))
def test_clipped_mean(values: list[list[float]], radius: float, steps: int) -> None:
    rows = torch.tensor(values, dtype=torch.float64)
    center = torch.zeros(rows.shape[1], dtype=torch.float64)
    expected = center
    for _ in range(steps):
        ways = rows - expected
        lengths = torch.tensor([math.hypot(*way) for way in ways.tolist()], dtype=torch.float64)
        expected = expected + (ways * (radius / lengths.clamp_min(radius))[:, None]).mean(dim=0)
    for start in (None, center):
        found = ops.clipped_mean(rows, start, radius, steps)
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9 * radius * steps)
    narrow = ops.clipped_mean(rows.float(), None, radius, steps)
    assert torch.allclose(narrow.double(), expected, rtol=1e-4, atol=1e-5 * radius * steps)


@given(matrices)
def test_weighted_sum(values: list[list[float]]) -> None:
    rows = torch.tensor(values)
    for weight in (1.0, 1e-20, 1e-40):
        weights = torch.full((len(rows),), weight / len(rows), dtype=torch.float64)
        expected = weights @ rows.double()
        scale = float(weight * rows.abs().max())
        found = ops.weighted_sum(rows, weights)
        assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-6 * scale + 1e-44)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_finite_rows(poison: float) -> None:
    rows = torch.full((4, 1000), 3e38)  # their sums overflow
    rows[0] = 1
    rows[2, 500] = poison
    assert ops.finite_rows(rows).tolist() == [True, True, False, True]
    assert not ops.stays_finite(rows[1], rows[3])
    assert ops.stays_finite(rows[1], -rows[3])


def test_rejected_rows_do_not_count_in_the_mean() -> None:
    rows = torch.tensor([[1.0], [2.0], [3.0], [6.0], [3e38]])
    verdict, _ = (defense := Defense((MultiKrum(0.2),), Mean()))(cohort_of(rows), defense.init())
    assert verdict.weights.tolist() == [1, 1, 1, 1, 0]
    assert verdict.update.tolist() == [3.0]


@pytest.fixture
def wide_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were measured in float64, call by call."""
    counted, measure = list[int](), norms._float64_norms

    def counting(rows: torch.Tensor, center: torch.Tensor | None) -> torch.Tensor:
        counted.append(len(rows))
        return measure(rows, center)

    monkeypatch.setattr(norms, "_float64_norms", counting)
    return counted


@pytest.mark.parametrize("columns", [1, 255, 256, 257, 5_000])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e12])
@pytest.mark.parametrize("around", [False, True])
def test_lengths_of_float32_rows(columns: int, size: float, around: bool, wide_rows: list[int]) -> None:
    rng = torch.Generator().manual_seed(columns)
    constants = torch.linspace(0.5, 2, 200)[:, None].expand(-1, columns)  # all roundings go one way
    rows = size * torch.cat([constants, torch.randn(4, columns, generator=rng)])
    center = rows[0] * (1 + 1e-3 * torch.randn(columns, generator=rng)) if around else None  # row 0 nearly cancels
    expected = rows.double() if center is None else rows.double() - center.double()
    torch.testing.assert_close(ops.row_norms(rows, center), expected.norm(dim=1), rtol=5e-7, atol=0)
    assert not wide_rows


def test_lengths_beyond_float32s_squares_are_measured_in_float64(wide_rows: list[int]) -> None:
    rows = torch.rand(5, 300, generator=torch.Generator().manual_seed(0))
    alone = ops.row_norms(rows)
    for i, size in ((1, 1e30), (2, 1e-30), (3, 0.0)):
        rows[i] *= size
    torch.testing.assert_close(ops.row_norms(rows), rows.double().norm(dim=1), rtol=5e-7, atol=0)
    assert wide_rows == [1, 1, 1]
    assert ops.row_norms(rows)[[0, 4]].tolist() == alone[[0, 4]].tolist()  # the others' lengths stay as they were


def test_lengths_of_rows_across_memory_and_without_any_columns(wide_rows: list[int]) -> None:
    for rows in (torch.rand(5000, 3).T, torch.linspace(0.5, 2, 3)[:, None].expand(-1, 5000), torch.zeros(3, 0)):
        torch.testing.assert_close(ops.row_norms(rows), rows.double().norm(dim=1), rtol=1e-12, atol=0)
    assert sum(wide_rows) == 9


def test_lengths_whatever_the_process_computes_in() -> None:
    rows, center = torch.rand(3, 700), torch.rand(700)
    expected = ops.row_norms(rows, center)
    torch.set_default_dtype(torch.float16)
    try:
        assert torch.equal(ops.row_norms(rows, center), expected)
    finally:
        torch.set_default_dtype(torch.float32)
