"""FLTrust against its definition, by hand and by a slow twin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Defense, MissingTrustedData
from cosdefense.aggregators import Mean
from cosdefense.filters import FLTrust
from doubles import Server, always, cohort_of, slow_cosine, weights_of

numbers = st.integers(-20, 20).map(float)
pairs = st.lists(numbers, min_size=2, max_size=2)


def test_pinned_values() -> None:
    # The server's own update (3, 4) has length 5. Cosines: 50/50, 24/25, −1, 0.
    cohort = cohort_of([[6, 8], [4, 3], [-30, -40], [4, -3]], trusted_data=always(3, 4))
    judgment, _ = FLTrust()(cohort, None)
    assert judgment.weights.tolist() == pytest.approx([1, 0.96, 0, 0], abs=1e-15)
    assert judgment.scores.tolist() == pytest.approx([-1, -0.96, 1, 0], abs=1e-15)
    # Every row as long as the server's: (6, 8) halves, (−30, −40) shrinks to a tenth.
    assert judgment.updates is not None
    assert judgment.updates[:, :2].flatten().tolist() == pytest.approx([3, 4, 4, 3, -3, -4, 4, -3])


def test_pinned_update() -> None:
    # (1 · (3, 4) + 0.96 · (4, 3)) / 1.96
    defense = Defense((FLTrust(),), Mean())
    verdict, _ = defense(cohort_of([[6, 8], [4, 3], [-30, -40]], trusted_data=always(3, 4)), defense.init())
    assert verdict.update[:2].tolist() == pytest.approx([6.84 / 1.96, 6.88 / 1.96])
    assert verdict.weights.tolist() == pytest.approx([1, 0.96, 0])


def test_the_global_rate_lengthens_weights_only() -> None:
    cohort = cohort_of([[6, 8], [4, 3], [-30, -40]], trusted_data=always(3, 4))
    one, other = (FLTrust(rate)(cohort, None)[0] for rate in (1.0, 3.0))
    assert one.updates is not None
    assert other.updates is not None
    assert torch.equal(other.updates[:, :2], 3 * one.updates[:, :2])
    assert torch.equal(other.updates[:, 2], one.updates[:, 2])
    assert torch.equal(other.weights, one.weights)
    with pytest.raises(ValueError, match=r"FLTrust.global_rate must be positive and finite, got 0"):
        FLTrust(0.0)


def test_without_trust_the_round_is_skipped_and_never_averaged() -> None:
    defense = Defense((FLTrust(),), Mean())
    verdict, _ = defense(cohort_of([[-3, -4], [-1, 0], [0, 0]], trusted_data=always(3, 4)), defense.init())
    assert verdict.skipped == "every client was rejected"
    assert verdict.update.tolist() == [0, 0, 0]
    assert verdict.weights.tolist() == [0, 0, 0]
    still, _ = defense(cohort_of([[3, 4], [1, 0]], trusted_data=always(0, 0)), defense.init())
    assert still.skipped == "every client was rejected"


def test_statistics_do_not_vote() -> None:
    """Their own statistic, or the server's 9, must change neither trust nor length."""
    quiet = cohort_of([[6, 8, 0], [4, 3, 0]], trusted_data=always(3, 4))
    loud = cohort_of([[6, 8, 1000], [4, 3, -1000]], trusted_data=always(3, 4))
    one, other = (FLTrust()(cohort, None)[0] for cohort in (quiet, loud))
    assert torch.equal(one.weights, other.weights)
    assert one.updates is not None
    assert other.updates is not None
    assert torch.equal(one.updates[:, :2], other.updates[:, :2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_length_buys_no_influence(size: float, dtype: torch.dtype) -> None:
    judgment, _ = FLTrust()(cohort_of([[3, 4], [4 * size, 3 * size]], trusted_data=always(3, 4), dtype=dtype), None)
    assert judgment.weights.tolist() == pytest.approx([1, 0.96])
    assert judgment.updates is not None
    assert judgment.updates[:, :2].flatten().tolist() == pytest.approx([3, 4, 4, 3])


@pytest.mark.parametrize("size", [1e-6, 1e-30])
def test_statistics_are_the_servers_own(size: float) -> None:
    """Trust in weights says nothing about statistics: neither a lie nor a stretched row may move them."""
    defense = Defense((FLTrust(),), Mean())
    cohort = cohort_of([[3, 4, 1e6], [3 * size, 4 * size, 0.5]], trusted_data=always(3, 4), dtype=torch.float32)
    verdict, _ = defense(cohort, defense.init())
    assert verdict.update.tolist() == pytest.approx([3, 4, 9])


def test_a_server_whose_training_fails_skips_the_round() -> None:
    defense = Defense((FLTrust(),), Mean())
    verdict, _ = defense(cohort_of([[3, 4], [4, 3]], trusted_data=always(float("nan"), 4)), defense.init())
    assert verdict.skipped == "every client was rejected"
    assert verdict.weights.tolist() == [0, 0]


def test_one_client() -> None:
    defense = Defense((FLTrust(),), Mean())
    verdict, _ = defense(cohort_of([[8, 6]], trusted_data=always(3, 4)), defense.init())
    assert verdict.update[:2].tolist() == pytest.approx([4, 3])


def test_it_says_that_it_needs_data() -> None:
    with pytest.raises(MissingTrustedData, match="clean data at the server"):
        FLTrust()(cohort_of([[1, 2]]), None)


def test_the_server_trains_from_the_rounds_model_with_the_rounds_seed() -> None:
    server = Server(lambda a, b: (a, b))
    cohort = replace(cohort_of([[4, -3]], trusted_data=server, seed=41), params=torch.tensor([8.0, -6, 0]).double())
    assert weights_of(FLTrust(), cohort) == [1]
    assert server.seeds == [41]


@given(st.lists(pairs, min_size=1, max_size=8), pairs)
def test_slow_twin(rows: list[list[float]], own: list[float]) -> None:
    trust = [max(0.0, slow_cosine(row, own)) for row in rows]
    trust = [t if t > 1e-12 else 0.0 for t in trust]  # whole numbers: a right angle is exact up to rounding
    length = math.hypot(*own)
    defense = Defense((FLTrust(),), Mean())
    verdict, _ = defense(cohort_of(rows, trusted_data=always(*own)), defense.init())
    assert verdict.weights.tolist() == pytest.approx(trust, abs=1e-12)
    if not any(trust):
        return  # cosines of exactly zero may round to 1e-17: whether such a round is skipped is not for here
    for k in range(2):
        share = math.fsum(t * row[k] * length / math.hypot(*row) for t, row in zip(trust, rows, strict=True) if t > 0)
        assert float(verdict.update[k]) == pytest.approx(share / math.fsum(trust), abs=1e-9)
