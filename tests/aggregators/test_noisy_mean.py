"""The noisy mean: the mean, plus noise of the promised size, once."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Layout, get
from cosdefense.aggregators import NoisyMean
from doubles import cohort_of

D = 40_000  # the deviation of this many draws is known to ±0.35 %: one part in √(2 · 40,000)
WIDE = Layout((("w", (D,)),), "w", D)


def silent(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Cohort:
    """Nobody moves: whatever comes out is noise."""
    return Cohort.of(torch.zeros(n, D, dtype=dtype), torch.zeros(D, dtype=dtype), WIDE, seed=seed)


def noise_of(part: NoisyMean, cohort: Cohort) -> torch.Tensor:
    update, _ = part(cohort, None)
    return update


def test_pinned_without_noise() -> None:
    # (1 + 3 + 8) / 3 = 4, (2 + 5 − 1) / 3 = 2, and the statistic (6 + 0 + 0) / 3 = 2.
    update, _ = NoisyMean(0.0)(cohort_of([[1, 2, 6], [3, 5, 0], [8, -1, 0]]), None)
    assert update.tolist() == pytest.approx([4, 2, 2])


@pytest.mark.parametrize("n", [1, 4, 25])
def test_noise_is_drawn_once_whatever_the_number_of_clients(n: int) -> None:
    """Drawn per client it would average out to std / √n: a fifth of it with 25 clients."""
    noise = noise_of(NoisyMean(0.5), silent(n))
    assert float(noise.std()) == pytest.approx(0.5, rel=0.015)
    assert float(noise.mean()) == pytest.approx(0, abs=4 * 0.5 / math.sqrt(D))
    assert torch.equal(noise, noise_of(NoisyMean(0.5), silent(1)))


@pytest.mark.parametrize("n", [1, 4, 25])
def test_noise_of_the_sum(n: int) -> None:
    assert float(noise_of(NoisyMean(0.5, of_sum=True), silent(n)).std()) == pytest.approx(0.5 / n, rel=0.015)


def test_noise_is_gaussian() -> None:
    # Shares within one, two and three standard deviations: 68.27 %, 95.45 %, 99.73 %, each to within 4 σ of a count.
    noise = noise_of(NoisyMean(2.0), silent(3)).abs() / 2
    for k in (1, 2, 3):
        share = math.erf(k / math.sqrt(2))
        assert float((noise < k).double().mean()) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / D))


@pytest.mark.parametrize("n", [2, 10])
def test_flower_is_calibrated_alike(n: int) -> None:
    try:
        privacy = importlib.import_module("flwr.supercore.differential_privacy")
    except ImportError:
        pytest.skip("flwr is not installed, or keeps compute_stdv elsewhere")
    expected = privacy.compute_stdv(1.5, 2.0, n)
    defense = get("central-dp", max_norm=2.0, noise_multiplier=1.5)
    verdict, _ = defense(silent(n), defense.init())
    assert float(verdict.update.std()) == pytest.approx(expected, rel=0.015)


def test_every_round_has_its_own_noise() -> None:
    part = NoisyMean(0.5)
    here, there = noise_of(part, silent(3, seed=1)), noise_of(part, silent(3, seed=2))
    assert torch.equal(here, noise_of(part, silent(3, seed=1)))
    assert abs(float(torch.corrcoef(torch.stack([here, there]))[0, 1])) < 4 / math.sqrt(D)


def test_statistics_get_no_noise() -> None:
    update, _ = NoisyMean(10.0)(cohort_of([[1, 2, 6], [3, 5, 0], [8, -1, 0]]), None)
    assert float(update[2]) == pytest.approx(2)
    assert update[:2].tolist() != pytest.approx([4, 2], abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hostile_numbers(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    update, _ = NoisyMean()(cohort_of([[largest, 1e30], [largest, 0]], dtype=dtype), None)
    assert bool(update.isfinite().all())
    assert update.dtype == dtype


def test_it_does_not_write_to_its_input() -> None:
    cohort = cohort_of([[1, 2]])
    NoisyMean(1.0)(cohort, None)
    assert cohort.updates[0, :2].tolist() == [1, 2]


@given(
    st.lists(st.lists(st.floats(-100, 100), min_size=3, max_size=3), min_size=1, max_size=9),
    st.lists(st.integers(1, 9), min_size=9, max_size=9),
    st.integers(0, 2**32),
)
def test_slow_twin(rows: list[list[float]], counts: list[int], seed: int) -> None:
    """Σ w u / Σ w plus the noise that a silent client with the same seed gets."""
    weights = [float(count) for count in counts[: len(rows)]]
    cohort = replace(cohort_of(rows, seed=seed), weights=torch.tensor(weights, dtype=torch.float64))
    part = NoisyMean(0.5)
    noise, _ = part(cohort_of([[0.0, 0.0, 0.0]], seed=seed), None)
    found, _ = part(cohort, None)
    for k in range(3):
        mean = math.fsum(w * row[k] for w, row in zip(weights, rows, strict=True)) / math.fsum(weights)
        assert float(found[k]) == pytest.approx(mean + float(noise[k]), abs=1e-12)


def test_clipping_comes_first() -> None:
    # (30, 40) is 50 long: clipped to 5, it is (3, 4); the mean with (0, 0) is (1.5, 2), and then comes the noise.
    defense = get("weak-dp", max_norm=5.0, std=0.001)
    verdict, _ = defense(cohort_of([[30, 40, 0], [0, 0, 0]]), defense.init())
    assert verdict.update.tolist() == pytest.approx([1.5, 2, 0], abs=0.006)
    assert verdict.update.tolist() != pytest.approx([1.5, 2, 0], abs=1e-6)


@pytest.mark.parametrize("std", [-0.1, math.inf, math.nan])
def test_mistakes_are_named(std: float) -> None:
    with pytest.raises(ValueError, match=rf"NoisyMean.std must be at least 0 and finite, got {std}"):
        NoisyMean(std)
