"""NearDuplicates against its formula, by hand and by a slow twin."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense.filters import NearDuplicates
from doubles import cohort_of, save_and_load, slow_cosine, weights_of, weights_only


def test_identical_updates_share_one_vote() -> None:
    # Three are identical, one differs. In the first round the baseline is the 0.75 quantile of its own cosines
    # 1, 1, 1, 0, 0, 0 (each twice), which is 1: no update loses weight.
    rows = cohort_of([[2, 0], [5, 0], [1, 0], [0, 1]])
    assert weights_of(NearDuplicates(), rows, None) == [1, 1, 1, 1]
    # With a baseline of 0, each of the three has two duplicates.
    judgment, state = NearDuplicates()(rows, 0.0)
    assert judgment.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])
    assert judgment.scores.tolist() == [2, 2, 2, 0]
    assert state == pytest.approx(0.05)  # this round's quantile is 1


def test_only_similarity_above_the_baseline_counts() -> None:
    # cos 60° = ½. Baseline ½: e² = 0. Baseline 0: e² = ¼. Baseline ¼: e² = ((½ − ¼) / ¾)² = 1/9.
    rows = cohort_of([[1, 0], [1, math.sqrt(3)]])
    for baseline, excess in ((0.5, 0.0), (0.9, 0.0), (0.0, 0.25), (0.25, 1 / 9)):
        judgment, _ = NearDuplicates()(rows, baseline)
        assert judgment.scores.tolist() == pytest.approx([excess, excess], abs=1e-6)
        assert judgment.weights.tolist() == pytest.approx([1 / (1 + excess)] * 2)


def test_opposites_are_not_duplicates() -> None:
    judgment, state = NearDuplicates()(cohort_of([[1, 0], [-1, 0], [0, 1]]), None)
    assert judgment.weights.tolist() == [1, 1, 1]
    assert state == 0  # never negative


def test_a_single_client_has_full_weight() -> None:
    assert weights_of(NearDuplicates(), cohort_of([[1, 2]]), None) == [1]
    judgment, state = NearDuplicates()(cohort_of([[1, 2]]), 0.3)
    assert judgment.weights.tolist() == [1]
    assert state == pytest.approx(0.3)
    assert NearDuplicates()(cohort_of([[1, 2]]), None)[1] is None


@given(st.integers(0, 10_000), st.integers(2, 9), st.sampled_from([None, 0.0, 0.2, 0.7]))
def test_like_a_slow_twin(seed: int, n: int, past: float | None) -> None:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 6, generator=rng, dtype=torch.float64)
    rows[: n // 2] += 2 * rows[0].clone()
    judgment, state = NearDuplicates(decay=0.9)(weights_only(rows), past)
    similarity = [[slow_cosine(a, b) for b in rows.tolist()] for a in rows.tolist()]
    pairs = sorted(similarity[i][j] for i in range(n) for j in range(n) if i != j)
    place = 0.75 * (len(pairs) - 1)
    low, high = pairs[math.floor(place)], pairs[math.ceil(place)]
    now = max(0.0, low + (place - math.floor(place)) * (high - low))
    baseline = now if past is None else past
    for i in range(n):
        excess = [max(0.0, (similarity[i][j] - baseline) / (1 - baseline)) ** 2 for j in range(n) if j != i]
        assert float(judgment.scores[i]) == pytest.approx(sum(excess), abs=1e-9)
        assert float(judgment.weights[i]) == pytest.approx(1 / (1 + sum(excess)))
    assert state == pytest.approx(now if past is None else 0.9 * past + 0.1 * now)


def test_the_state_can_be_saved() -> None:
    part = NearDuplicates()
    _, state = part(cohort_of([[1, 0], [1, 1], [0, 2]]), part.init())
    assert save_and_load(state, part) == state


def test_a_wrong_decay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"NearDuplicates.decay must be in \[0, 1\), got 1"):
        NearDuplicates(decay=1.0)
