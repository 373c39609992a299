"""Clips to a norm that is measured: the running median, and the quantile rule of Andrew et al."""

from __future__ import annotations

import math
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Defense, Filter, get
from cosdefense.aggregators import Mean, Median, NoisyMean
from cosdefense.core import State
from cosdefense.filters import RFFL, Clip, MedianClip, QuantileClip
from doubles import cohort_of


def clipped_norms(part: Filter, norms: list[float], state: State = None) -> tuple[list[float], State]:
    judgment, state = part(cohort_of([[norm, 0.0] for norm in norms]), state)
    assert judgment.updates is not None
    assert judgment.scores.tolist() == pytest.approx(norms)
    assert bool((judgment.weights == 1).all())
    return judgment.updates[:, 0].tolist(), state


def test_pinned_quantile() -> None:
    # The card: C = 1, norms (2, 2, 3, 0.8): b = 0.25, next C = exp(0.2 · 0.25); norms (0.5, 2, 3, 0.8): C stays.
    found, moved = clipped_norms(QuantileClip(), [2, 2, 3, 0.8], 1.0)
    assert found == pytest.approx([1, 1, 1, 0.8])
    assert moved == pytest.approx(1.051271, abs=1e-6)
    assert clipped_norms(QuantileClip(), [0.5, 2, 3, 0.8], 1.0)[1] == 1.0


@pytest.mark.parametrize("start", [0.001, 1000.0])
def test_the_quantile_is_reached_from_both_sides(start: float) -> None:
    """Flower counts the clipped clients with the same sign, so that its norm runs away from the quantile."""
    part, state, norms = QuantileClip(quantile=0.5, start=start), None, [0.5 + i / 10 for i in range(11)]
    for _ in range(200):
        _, state = clipped_norms(part, norms, state)
    assert state == pytest.approx(1.0, abs=0.11)


def test_where_the_rules_start() -> None:
    assert clipped_norms(QuantileClip(), [1, 3, 5, 9])[0] == pytest.approx([1, 3, 4, 4])
    assert clipped_norms(QuantileClip(start=0.1), [1, 3, 5])[0] == pytest.approx([0.1] * 3)
    assert clipped_norms(MedianClip(), [1, 3, 5, 9])[0] == pytest.approx([1, 3, 4, 4])
    assert clipped_norms(MedianClip(ratio=2.0), [1, 3, 5, 9])[0] == pytest.approx([1, 3, 5, 8])


@pytest.mark.parametrize("part", [MedianClip(), QuantileClip()])
def test_zero_updates_say_nothing(part: Filter) -> None:
    found, state = clipped_norms(part, [0, 0, 7])
    assert found == [0, 0, 0]
    assert clipped_norms(part, [2, 4, 6], state)[0] == pytest.approx([2, 4, 4])


def test_the_running_median_at_most_doubles() -> None:
    part = MedianClip(decay=0.5)
    _, state = clipped_norms(part, [1, 1, 1])
    found, state = clipped_norms(part, [1000, 1000, 1000], state)
    assert state == 1.5  # half of 1, half of 2
    assert found == pytest.approx([1.5] * 3)
    assert clipped_norms(MedianClip(decay=0.0), [1, 2, 3], 1.0)[0] == pytest.approx([1, 2, 2])


def test_noise_of_the_count_is_drawn_by_the_seed() -> None:
    part = QuantileClip(noise=0.5)
    moved = {seed: part(cohort_of([[1, 0], [3, 0]], seed=seed), 2.0)[1] for seed in (0, 0, 1)}
    assert len(set(moved.values())) == 2
    # The count is 1 of 2, so that C moves by the noise alone: −rate · noise · z / n.
    z = [math.log(value / 2.0) / (-0.2 * 0.5 / 2) for value in moved.values()]
    assert all(abs(value) < 5 for value in z)


norms_of_rounds = st.lists(st.lists(st.floats(0.01, 100), min_size=1, max_size=7), min_size=1, max_size=6)


@given(norms_of_rounds, st.sampled_from([0.2, 0.5, 0.9]), st.sampled_from([0.1, 0.5]))
def test_slow_twins(rounds: list[list[float]], quantile: float, rate: float) -> None:
    following, running = QuantileClip(quantile, rate), MedianClip(decay=quantile)
    limit, middle, states = median(rounds[0]), None, [None, None]
    for norms in rounds:
        found, states[0] = clipped_norms(following, norms, states[0])
        assert found == pytest.approx([min(norm, limit) for norm in norms])
        if any(abs(norm - limit) < 1e-9 for norm in norms):
            return  # on the limit: rounding decides
        limit *= math.exp(-rate * (sum(norm <= limit for norm in norms) / len(norms) - quantile))
        now = median(norms)
        middle = now if middle is None else quantile * middle + (1 - quantile) * min(now, 2 * middle)
        found, states[1] = clipped_norms(running, norms, states[1])
        assert found == pytest.approx([min(norm, middle) for norm in norms])


def test_presets_take_a_norm_or_a_rule() -> None:
    assert get("clipping-median", max_norm="median") == Defense((MedianClip(),), Median())
    assert get("norm-clipping", max_norm="quantile") == Defense((QuantileClip(),), Mean())
    assert get("norm-clipping", max_norm=3) == Defense((Clip(3.0),), Mean())
    assert get("rffl", max_norm="median").filters == (MedianClip(), RFFL())
    assert get("central-dp", max_norm="median", noise_multiplier=0.5).aggregator == NoisyMean(0.5, True, True)
    with pytest.raises(ValueError, match="max_norm"):
        get("norm-clipping", max_norm="mean")


def test_noise_relative_to_the_clipped_norm() -> None:
    """The same draws at a thousandth of the scale give a thousandth of the noise."""
    rows = torch.tensor([[3.0, 4.0, 0.0], [0.3, 0.4, 0.0], [0.0, 0.2, 0.0]], dtype=torch.float64)
    defense = get("central-dp", max_norm="median", noise_multiplier=2.0)
    large, small = (defense(cohort_of(scale * rows), defense.init())[0].update[:2] for scale in (1.0, 1e-3))
    assert torch.allclose(small, 1e-3 * large, rtol=1e-12)
    # Clipped to the median 0.5, so the noise of the mean has a deviation of 2 · 0.5 / 3.
    plain = get("central-dp", max_norm=0.5, noise_multiplier=2.0)
    assert torch.allclose(large, plain(cohort_of(rows), plain.init())[0].update[:2])


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: MedianClip(ratio=0.0), r"MedianClip.ratio must be positive and finite, got 0.0"),
        (lambda: MedianClip(decay=1.0), r"MedianClip.decay must be in \[0, 1\), got 1.0"),
        (lambda: QuantileClip(quantile=1.5), r"QuantileClip.quantile must be in \[0, 1\], got 1.5"),
        (lambda: QuantileClip(rate=0.0), r"QuantileClip.rate must be positive and finite, got 0.0"),
        (lambda: QuantileClip(start=-1.0), r"QuantileClip.start must be positive and finite, got -1.0"),
        (lambda: QuantileClip(noise=-1.0), r"QuantileClip.noise must be at least 0 and finite, got -1.0"),
    ],
)
def test_mistakes_are_named(make: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()  # type: ignore[operator]
