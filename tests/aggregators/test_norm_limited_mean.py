"""The norm-limited mean by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cosdefense import Defense, get
from cosdefense.aggregators import Mean, NormLimitedMean
from doubles import save_and_load, weights_only


def test_the_first_mean_is_not_clipped() -> None:
    update, state = NormLimitedMean()(weights_only([[6, 0], [0, 8]]), None)
    assert update.tolist() == [3, 4]
    assert state == 5


def test_later_means_are_clipped_to_the_running_average() -> None:
    cohort = weights_only([[6, 0], [0, 8]])
    update, state = NormLimitedMean()(cohort, 2.0)  # 1.2 · 2 = 2.4 of 5
    assert update.tolist() == pytest.approx([3 * 0.48, 4 * 0.48])
    assert state == pytest.approx(0.95 * 2 + 0.05 * 4)  # a norm counts as at most twice the running average
    update, state = NormLimitedMean(max_mean_ratio=3.0, decay=0.5)(cohort, 4.0)
    assert update.tolist() == [3, 4]
    assert state == pytest.approx(4.5)


def test_weights_count_and_rejected_rows_do_not() -> None:
    cohort = replace(
        weights_only([[6, 0], [0, 8], [1e30, 0]]), weights=torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    )
    assert NormLimitedMean()(cohort, None)[0].tolist() == Mean()(cohort, None)[0].tolist() == [4.5, 2]


def test_a_round_of_zeros_is_forgotten() -> None:
    _, state = NormLimitedMean()(weights_only([[0, 0]]), None)
    update, state = NormLimitedMean()(weights_only([[3, 4]]), state)
    assert update.tolist() == [3, 4]
    assert state == 5
    assert save_and_load(state, NormLimitedMean()) == state


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"NormLimitedMean.max_mean_ratio must be positive and finite, got 0"):
        NormLimitedMean(max_mean_ratio=0.0)
    with pytest.raises(ValueError, match=r"NormLimitedMean.decay must be in \[0, 1\), got 1"):
        NormLimitedMean(decay=1.0)


def test_colluding_clients_are_rejected_even_as_a_majority() -> None:
    """Six of ten send the same update, opposed to the others: they share one vote and are the smaller cluster."""
    rng = torch.Generator().manual_seed(0)
    honest = torch.randn(10, 40, generator=rng, dtype=torch.float64) + 0.5
    defense: Defense = get("opposed-clusters")
    _, state = defense(weights_only(honest), defense.init())
    rows = torch.cat([honest[:4], -1.5 * honest[:4].mean(dim=0).expand(6, -1)])
    verdict, _ = defense(weights_only(rows), state)
    assert (verdict.weights != 0).tolist() == [True] * 4 + [False] * 6
    assert float(verdict.update @ honest[:4].mean(dim=0)) > 0
