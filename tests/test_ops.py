"""Every kernel against its definition, at the scales where careless ones break."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
    whole = [ops.row_norms(values), ops.squared_distances(values), ops.median(values), ops.trimmed_mean(values, 1)]
    monkeypatch.setattr(ops, "BLOCK", 10)
    parts = [ops.row_norms(values), ops.squared_distances(values), ops.median(values), ops.trimmed_mean(values, 1)]
    for one, other in zip(whole, parts, strict=True):
        assert torch.allclose(one, other, rtol=1e-6)


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


def test_fraction_of() -> None:
    assert ops.fraction_of(0.29, 100) == 29  # 0.29 · 100 is 28.999999999999996
    assert ops.fraction_of(0.3, 10) == 3
    assert ops.fraction_of(0.3, 9) == 2
    assert ops.fraction_of(0.0, 10) == 0
