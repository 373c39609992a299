"""TypicalNormMean against its formula; what one round, one long update and many zeros can do to it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from cosdefense.aggregators import Mean, TypicalNormMean
from cosdefense.aggregators.typical_norm_mean import MIN_REMEMBERED, RecentNorms
from doubles import save_and_load, weights_only


def test_it_computes_its_formula() -> None:
    rng = np.random.default_rng(0)
    rule, state, past, average = TypicalNormMean(), TypicalNormMean().init(), list[tuple[float, float]](), None
    ratios = list[float]()
    for _ in range(60):
        rows, weights = rng.normal(size=(10, 4)) * rng.lognormal(sigma=1.0, size=(10, 1)), rng.integers(0, 3, size=10)
        weights[0] = 1
        norms = np.linalg.norm(rows, axis=1)
        full = np.minimum(1, weights / (0.5 * weights[weights > 0].mean()))
        past = [*past, *zip(norms, full, strict=True)][-MIN_REMEMBERED:]
        total = sum(weight for _, weight in past)
        wanted = total * (0.5 - 0.5 / math.sqrt(total))
        limit = next(norm for norm, _ in sorted(past) if sum(w for other, w in past if other <= norm) >= wanted)
        typical, counting = limit, norms[weights > 0]
        start = max(1.5 * typical, np.quantile(counting, 0.5, method="lower"))
        usual = np.quantile(counting, 0.5, method="higher")
        shorter = min(typical, usual)
        lengths = [min(norm, 1.5 * shorter) * min(1.0, start / norm) for norm in norms]
        directions = [
            w * length * row / norm for w, length, row, norm in zip(weights, lengths, rows, norms, strict=True)
        ]
        ratios = [*ratios, *(norms / np.median(counting))][-MIN_REMEMBERED:]
        counts = [w * min(1.0, 3.0 / ratio) ** 4 for ratio, (_, w) in zip(ratios, past, strict=True)]
        ratio = sum(c * min(r, 3.0) for c, r in zip(counts, ratios, strict=True)) / sum(counts)
        step = shorter * ratio
        mean = step * np.sum(directions, axis=0) / np.dot(weights, lengths)
        norm = float(np.linalg.norm(mean))
        average = norm if average is None else average
        allowed = max(1.2 * average, 0.3 * shorter)
        mean *= min(1.0, allowed / norm)
        average = 0.95 * average + 0.05 * min(norm, max(2 * average, allowed))
        cohort = replace(weights_only(rows.tolist()), weights=torch.tensor(weights, dtype=torch.float64))
        update, state = rule(cohort, state)
        assert update.tolist() == pytest.approx(mean.tolist())
        assert state.mean == pytest.approx(average)


def test_the_step_is_as_long_as_that_of_a_mean_without_clipping() -> None:
    """Norms of honest updates are skewed: their mean is above their median, and clipping alone would slow them down."""
    rows = [[1.0, 0.0]] * 6 + [[1.4, 0.0]] * 4
    update, _ = TypicalNormMean()(weights_only(rows), RecentNorms())
    assert update.tolist() == pytest.approx([1.16, 0.0])


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.98])
def test_steps_shrink_as_updates_do(factor: float) -> None:
    """Few clients that train long make half as long updates in every round: a mean of remembered norms is too long."""
    rule, state, norm = TypicalNormMean(), TypicalNormMean().init(), 1.0
    for _ in range(40):
        update, state = rule(weights_only([[norm, 0.0]] * 4), state)
        assert float(update.norm()) <= 1.1 * norm
        norm *= factor


def test_equal_norms_give_the_mean() -> None:
    rows = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
    update, _ = TypicalNormMean()(weights_only(rows), RecentNorms())
    assert update.tolist() == pytest.approx(Mean()(weights_only(rows), None)[0].tolist())


@pytest.mark.parametrize("n_long", [1, 3, 5, 6])
def test_long_updates_do_not_decide_the_first_round(n_long: int) -> None:
    """Of ten clients six may be malicious: the fourth shortest update is then still an honest one."""
    rows = [[1.0, 0.0]] * (10 - n_long) + [[0.0, 1e6]] * n_long
    update, _ = TypicalNormMean()(weights_only(rows), RecentNorms())
    assert float(update.norm()) <= 1 + 1e-9


def test_rejected_updates_do_not_move_the_typical_norm() -> None:
    rows, weights = [[1.0, 0.0]] * 4 + [[0.01, 0.0]] * 6, torch.tensor([1.0] * 4 + [0.0] * 6, dtype=torch.float64)
    update, state = TypicalNormMean()(replace(weights_only(rows), weights=weights), RecentNorms())
    assert update.tolist() == pytest.approx([1.0, 0.0])
    update, _ = TypicalNormMean()(weights_only([[1.0, 0.0]]), state)
    assert update.tolist() == pytest.approx([1.0, 0.0])


def test_crowded_updates_count_as_much_as_noise_for_the_typical_norm() -> None:
    """Near-duplicates share votes: a filter gives them a third of the weight of noise. They are still the majority."""
    state = TypicalNormMean().init()
    for n_noise in [4] * 20 + [6]:  # in the last round the median norm of the round is that of noise, too
        rows = [[1.0, 0.0]] * (10 - n_noise) + [[0.0, 1e6]] * n_noise
        weights = torch.tensor([0.35] * (10 - n_noise) + [1.0] * n_noise, dtype=torch.float64)
        update, state = TypicalNormMean()(replace(weights_only(rows), weights=weights), state)
        assert float(update.norm()) <= 1 + 1e-9


def test_zero_updates_do_not_slow_the_model_down() -> None:
    update, _ = TypicalNormMean()(weights_only([[1.0, 0.0]] * 5 + [[0.0, 0.0]] * 5), RecentNorms())
    assert update.tolist() == pytest.approx([1.0, 0.0])


def test_nearly_zero_updates_stop_the_model_for_a_few_rounds_only() -> None:
    rule, state, rows = TypicalNormMean(), TypicalNormMean().init(), [[1.0, 0.0]] * 6 + [[0.0, 1e-9]] * 4
    lengths = []
    for _ in range(60):
        update, state = rule(weights_only(rows), state)
        lengths.append(float(update.norm()))
    assert lengths[0] < 1e-8
    assert lengths[-1] > 0.5


def test_after_means_that_canceled_a_step_is_limited_by_the_norms_of_its_own_round() -> None:
    state = TypicalNormMean().init()
    for _ in range(20):
        _, state = TypicalNormMean()(weights_only([[1.0, 0.0]] * 5 + [[-1.0, 0.01]] * 5), state)
    update, _ = TypicalNormMean()(weights_only([[0.5, 0.0]] * 10), state)
    assert update.tolist() == pytest.approx([0.3 * 0.5, 0.0])


def test_nobody_moves_the_weights() -> None:
    update, state = TypicalNormMean()(
        weights_only([[0.0, 0.0], [0.0, 0.0]]), RecentNorms(torch.ones(2), torch.ones(2), torch.ones(2), 1.0)
    )
    assert update.tolist() == [0.0, 0.0]
    assert state.mean == 1.0


def test_it_remembers_so_many_norms_and_survives_saving() -> None:
    rule, state = TypicalNormMean(), TypicalNormMean().init()
    for _ in range(50):
        _, state = rule(weights_only([[1.0, 0.0]] * 9), state)
    assert len(state.norms) == MIN_REMEMBERED
    assert torch.equal(save_and_load(state, rule).norms, state.norms)
    _, state = rule(weights_only([[2.0, 0.0]] * 500), state)
    assert state.norms.tolist() == [2.0] * 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_mean_ratio": 0.0}, "TypicalNormMean.max_mean_ratio must be positive and finite, got 0.0"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TypicalNormMean(**options)
