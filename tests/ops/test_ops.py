"""Every kernel against its definition, at the scales where careless ones break."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import ops

rows = st.lists(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4), min_size=1, max_size=9)


@given(rows)
def test_squared_distances(values: list[list[float]]) -> None:
    found = ops.squared_distances(torch.tensor(values, dtype=torch.float64))
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            expected = math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))
            assert float(found[i, j]) == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_of_nearly_identical_rows(dtype: torch.dtype) -> None:
    base = torch.full((1, 1000), 1e3, dtype=dtype)
    near = base * (1 + torch.arange(5)[:, None] * torch.finfo(dtype).eps)
    found = ops.squared_distances(near)
    assert bool((found >= 0).all())
    assert bool(found.isfinite().all())
    assert bool((found.diagonal() == 0).all())
    exact = (near.double()[0] - near.double()[4]).square().sum()
    assert float(found[0, 4]) == pytest.approx(float(exact), rel=1e-6)


def test_blocks_are_seamless(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(6, 103, generator=torch.Generator().manual_seed(0))
    trimmed = partial(ops.trimmed_mean, trim=1)
    kernels: list[Callable[[Tensor], Tensor]] = [ops.row_norms, ops.squared_distances, ops.median, trimmed, ops.cosines]
    whole = [kernel(values) for kernel in kernels]
    monkeypatch.setattr(ops.blocks, "BLOCK", 60)  # ten columns of six rows
    monkeypatch.setattr(ops.coordinatewise, "COLUMNS", 10)
    for one, kernel in zip(whole, kernels, strict=True):
        assert torch.allclose(one, kernel(values), rtol=1e-6)


def test_long_norms_do_not_drift() -> None:
    """Float32 sums of millions of squares lose digits; ours are summed in float64."""
    values = torch.full((1, 3_000_000), 0.1)
    assert float(ops.row_norms(values)[0]) == pytest.approx(0.1 * math.sqrt(3e6), rel=1e-6)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_norms_at_any_size(size: float) -> None:
    assert float(ops.row_norms(torch.tensor([[3 * size, 4 * size], [0, 0]], dtype=torch.float64))[0]) == 5 * size


def test_cosine() -> None:
    values = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [-2.0, 0.0]])
    assert ops.cosine(values, torch.tensor([2.0, 0.0])).tolist() == pytest.approx([1, math.sqrt(0.5), 0, -1])
    assert ops.cosine(values, torch.zeros(2)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_cosine_at_any_size(size: float) -> None:
    values = torch.tensor([[3 * size, 4 * size]], dtype=torch.float64)
    assert float(ops.cosine(values, torch.tensor([1.0, 0.0], dtype=torch.float64))[0]) == pytest.approx(0.6)


@given(rows)
def test_cosines_with_references_are_those_of_every_pair(values: list[list[float]]) -> None:
    found = torch.tensor(values, dtype=torch.float64)
    references = torch.stack([found[0], torch.ones_like(found[0]), torch.zeros_like(found[0])])
    compared = ops.cosines_with(found, references)
    for j, reference in enumerate(references):
        assert compared[:, j].tolist() == pytest.approx(ops.cosine(found, reference).tolist(), abs=1e-12)


def test_cosines_with_references_of_huge_rows() -> None:
    values = torch.tensor([[1.5e308, 1.5e308], [3e-300, 4e-300]], dtype=torch.float64)
    assert ops.cosines_with(values, torch.tensor([[1.0, 0.0]]))[:, 0].tolist() == pytest.approx([0.5**0.5, 0.6])
    halves = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.bfloat16)
    assert ops.cosines_with(halves, torch.tensor([[1.0, 0.0]]))[:, 0].tolist() == pytest.approx([0.6, 0])


def test_cosines() -> None:
    # (1, 0), (3, 4), (−2, 0), nothing: 0.6, −1 and −0.6, and nothing has an angle to nothing.
    values = torch.tensor([[1.0, 0.0], [3.0, 4.0], [-2.0, 0.0], [0.0, 0.0]])
    found = ops.cosines(values)
    assert found.dtype == torch.float64
    expected = [1, 0.6, -1, 0, 0.6, 1, -0.6, 0, -1, -0.6, 1, 0, 0, 0, 0, 0]
    assert found.flatten().tolist() == pytest.approx(expected)


@given(rows)
def test_cosines_are_cosines_of_pairs(values: list[list[float]]) -> None:
    found = ops.cosines(torch.tensor(values, dtype=torch.float64))
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            # Scaled before they are squared: a double as small as 1e-200 still has a direction.
            a_size, b_size = max(map(abs, a)) or 1.0, max(map(abs, b)) or 1.0
            one, other = [x / a_size for x in a], [x / b_size for x in b]
            lengths = math.hypot(*one) * math.hypot(*other)
            expected = math.fsum(x * y for x, y in zip(one, other, strict=True)) / lengths if lengths else 0.0
            assert float(found[i, j]) == pytest.approx(expected, abs=1e-12)
    assert float(found.abs().max()) <= 1


@pytest.mark.parametrize("size", [1e-308, 1e-160, 1e160, 1.5e308])
def test_cosines_at_any_size(size: float) -> None:
    """Two coordinates of 1.5e308 are a row whose length no number holds; its direction is there all the same."""
    values = torch.tensor([[size, size], [1.0, 1.0], [size, -size], [size, 0.0]], dtype=torch.float64)
    expected = [[1, 1, 0, 0.5**0.5], [1, 1, 0, 0.5**0.5], [0, 0, 1, 0.5**0.5], [0.5**0.5, 0.5**0.5, 0.5**0.5, 1]]
    found = ops.cosines(values).flatten().tolist()
    assert found == pytest.approx([x for row in expected for x in row], abs=1e-12)


def test_cosines_of_a_huge_row_among_small_ones() -> None:
    values = torch.tensor([[3e38, 3e38, 0.0], [1e-30, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert ops.cosines(values)[0].tolist() == pytest.approx([1, 0.5**0.5, 0])


def test_rescale_rows() -> None:
    values = torch.tensor([[1.0, -2.0], [3.0, 0.0], [0.0, 0.0]])
    factors = torch.tensor([2.0, -0.5, 7.0], dtype=torch.float64)
    found = ops.rescale_rows(values, factors)
    assert found.dtype == torch.float32
    assert found.tolist() == [[2, -4], [-1.5, 0], [0, 0]]
    assert values.tolist() == [[1, -2], [3, 0], [0, 0]]  # a copy


def test_rescale_rows_by_more_than_the_rows_type_holds() -> None:
    """1e300 is no float32; a zero row must stay zero all the same, not become NaN."""
    factors = torch.tensor([1e300, -1e300, 1e300], dtype=torch.float64)
    found = ops.rescale_rows(torch.tensor([[0.0, 0.0], [0.0, 1e-38], [1e-38, 0.0]]), factors)
    assert found[0].tolist() == [0, 0]
    assert bool(found.isfinite().all())
    assert float(found[1, 1]) < 0 < float(found[2, 0])


def test_min_max() -> None:
    assert ops.min_max(torch.tensor([2.0, 4.0, 3.0])).tolist() == [0, 1, 0.5]
    assert ops.min_max(torch.tensor([7.0, 7.0])).tolist() == [0, 0]
    assert ops.min_max(torch.tensor([5.0])).tolist() == [0]
    assert ops.min_max(torch.tensor([5.0, 5.25]), tolerance=0.25).tolist() == [0, 0]
    assert ops.min_max(torch.tensor([5.0, 5.5]), tolerance=0.25).tolist() == [0, 1]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20), st.randoms())
def test_statistics_do_not_depend_on_the_order(values: list[float], random: st.DataObject) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for statistic in (ops.mean_of, ops.std_of, ops.median_of):
        assert torch.equal(statistic(torch.tensor(values)), statistic(torch.tensor(shuffled)))


@pytest.mark.parametrize("n", [1, 2, 64, 65, 100])
def test_median_of_leaves_its_argument_alone(n: int) -> None:
    scores = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    before = scores.tolist()
    assert float(ops.median_of(scores)) == pytest.approx(statistics.median(before), rel=1e-15)
    assert scores.tolist() == before


@pytest.mark.parametrize("n", [9, 65, 100])
def test_z_scores_belong_to_their_clients(n: int) -> None:
    scores = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).tolist()
    center, deviation = statistics.median(scores), statistics.pstdev(scores)
    expected = [abs(score - center) / deviation for score in scores]
    assert ops.z_scores(torch.tensor(scores, dtype=torch.float64)).tolist() == pytest.approx(expected)


def test_fraction_of() -> None:
    assert ops.fraction_of(0.29, 100) == 29  # 0.29 · 100 is 28.999999999999996
    assert ops.fraction_of(0.3, 10) == 3
    assert ops.fraction_of(0.3, 9) == 2
    assert ops.fraction_of(0.0, 10) == 0
