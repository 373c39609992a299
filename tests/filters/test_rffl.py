"""RFFL against its definition, by hand and by a slow twin."""

from __future__ import annotations

import math
from functools import partial
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense
from cosdefense.aggregators import Mean
from cosdefense.core import State
from cosdefense.filters import RFFL
from cosdefense.filters.rffl import Start
from doubles import cohort_of, save_and_load, slow_cosine, weights_of

start_average = partial(RFFL, start="average")  # slower, so that the numbers of several rounds can be followed

ONE_OPPOSED = [[1, 0], [1, 0], [-1, 0]]  # the third goes the other way


def weights_over(part: RFFL, cohorts: list[Cohort]) -> tuple[list[list[float]], State]:
    """What everybody counted in each round, and the memory afterwards."""
    state, found = part.init(), []
    for cohort in cohorts:
        judgment, state = part(cohort, state)
        assert torch.equal(judgment.scores, -judgment.weights)
        found.append(judgment.weights.tolist())
    return found, state


def test_pinned_reputations() -> None:
    # Shares ⅓ each; the aggregate points right: cosines 1, 1, −1. 0.95 · ⅓ ± 0.05 = 0.36667, 0.36667, 0.26667,
    # which sum to 1: 1.1, 1.1 and 0.8 fair shares. Again: 0.95 · 0.36667 + 0.05 = 0.39833 and
    # 0.95 · 0.26667 − 0.05 = 0.20333. Again: 0.42842 and 0.14317. Again: 0.45700 and 0.08601.
    found, _ = weights_over(start_average(), [cohort_of(ONE_OPPOSED)] * 5)
    assert found[0] == [1, 1, 1]
    assert found[1] == pytest.approx([1.1, 1.1, 0.8])
    assert found[2] == pytest.approx([1.195, 1.195, 0.61])
    assert found[3] == pytest.approx([1.28525, 1.28525, 0.4295])
    assert found[4] == pytest.approx([1.3709875, 1.3709875, 0.258025])


def test_pinned_start() -> None:
    """As in the authors' code the first round's agreement is all that counts at first: 0.05 · (1, 1, −1) of 0.1."""
    found, _ = weights_over(RFFL(), [cohort_of(ONE_OPPOSED)] * 3)
    assert found == [[1, 1, 1], [1.5, 1.5, 0], [1.5, 1.5, 0]]
    # The aggregate is (2, 1) / 3, the cosines 2/√5, 2/√5, 1/√5.
    found, _ = weights_over(RFFL(), [cohort_of([[1, 0], [1, 0], [0, 1]])] * 2)
    assert found[1] == pytest.approx([1.2, 1.2, 0.6])


def test_a_late_client_starts_from_its_agreement_too() -> None:
    # Before: 1.5 and 1.5 shares of clients 3 and 4. With a newcomer that agrees: sum 4, shares 0.375, 0.375, 0.25; all
    # cosines are 1, so the newcomer's memory is ⅓: 0.95 · (0.375, 0.375, ⅓) + 0.05, of which 4 are distributed.
    part = RFFL()
    _, state = weights_over(part, [cohort_of(ONE_OPPOSED, [3, 4, 5])])
    _, state = part(cohort_of([[1, 0]] * 3, [3, 4, 9]), state)
    earned = [0.95 * 0.375 + 0.05] * 2 + [0.95 / 3 + 0.05]
    expected = [4 * value / math.fsum(earned) for value in earned]
    assert weights_of(part, cohort_of([[1, 0]] * 3, [3, 4, 9]), state) == pytest.approx(expected)


def test_the_mean_is_weighted_by_what_was_earned_before() -> None:
    defense = Defense((start_average(),), Mean())
    first, state = defense(cohort_of([[1, 0, 0], [1, 0, 0], [-1, 0, 0]]), defense.init())
    second, _ = defense(cohort_of([[1, 0, 0], [1, 0, 0], [-1, 0, 0]]), state)
    assert first.update.tolist() == pytest.approx([1 / 3, 0, 0])
    assert second.update.tolist() == pytest.approx([1.4 / 3, 0, 0])


def test_removal_waits_for_the_warm_up() -> None:
    # Fair shares of the malicious client after each round: 0.8, 0.61, 0.43, 0.26, … : below a third after the fourth.
    def until_removed(warm_up: int) -> int:
        found, _ = weights_over(start_average(warm_up=warm_up), [cohort_of(ONE_OPPOSED)] * 8)
        return [row[2] for row in found].index(0)

    assert until_removed(0) == 4
    assert until_removed(3) == 4
    assert until_removed(4) == 5
    assert until_removed(5) == 6


def test_who_lost_everything_in_the_warm_up_can_earn_again() -> None:
    # 0.26 fair shares after the fourth round, then 0.95 · 0.086 − 0.05 = 0.03 of all, then less than nothing: 0.
    part = start_average(warm_up=20)
    found, state = weights_over(part, [cohort_of(ONE_OPPOSED)] * 7)
    assert found[6][2] == 0
    _, state = part(cohort_of([[1, 0]] * 3), state)
    # Shares ½, ½, 0 and cosines 1: 0.525, 0.525, 0.05, which sum to 1.1.
    assert weights_of(part, cohort_of([[1, 0]] * 3), state) == pytest.approx([3 * 0.525 / 1.1] * 2 + [3 * 0.05 / 1.1])


def test_a_round_that_says_nothing_changes_nothing() -> None:
    part = start_average(decay=0.0)
    _, state = part(cohort_of([[0, 0], [0, 0]]), part.init())
    assert weights_of(part, cohort_of([[1, 0], [1, 0]]), state) == [1, 1]


def test_the_warm_up_is_each_clients_own() -> None:
    """A malicious client that joins late has the same warm-up as the others."""
    early = [cohort_of([[1, 0], [1, 0]], [0, 1])] * 7
    found, _ = weights_over(start_average(warm_up=4), [*early, *[cohort_of(ONE_OPPOSED, [0, 1, 2])] * 6])
    assert [row[2] == 0 for row in found[7:]] == [False] * 5 + [True]


def test_the_threshold_is_a_share_of_the_fair_one() -> None:
    found, _ = weights_over(start_average(warm_up=0, threshold=0.7), [cohort_of(ONE_OPPOSED)] * 4)
    assert [row[2] == 0 for row in found] == [False, False, True, True]  # 0.8 passes, 0.61 does not
    found, _ = weights_over(start_average(warm_up=0, threshold=0.0), [cohort_of(ONE_OPPOSED)] * 4)
    assert all(row[2] > 0 for row in found)


def test_the_fair_share_is_that_of_those_who_are_left() -> None:
    # Decay ½: shares ⅓ become ⅙ + ½, ⅙ + ½ and less than nothing: ½, ½ and removed. Then (100, 0) and (0, 1) lead to
    # (50, ½): cosines 0.99995 and 0.01, so 0.75 and 0.255 of 1.005: 0.746 and 0.254. The limit is 0.6 · ½ = 0.3;
    # a third of 0.6 would let the second one stay.
    part = start_average(decay=0.5, threshold=0.6, warm_up=0)
    rows = [[100, 0], [0, 1], [0, 0]]
    found, _ = weights_over(part, [cohort_of(ONE_OPPOSED), cohort_of(rows), cohort_of(rows)])
    assert found[1] == pytest.approx([1.5, 1.5, 0])
    assert found[2] == pytest.approx([3 * 0.74626, 0, 0], abs=1e-3)


def test_the_removed_stay_removed() -> None:
    part = start_average(warm_up=3)
    _, state = weights_over(part, [cohort_of(ONE_OPPOSED, [7, 8, 9])] * 4)
    for _ in range(30):  # as good as gold, and for longer than any warm-up
        judgment, state = part(cohort_of([[1, 0], [1, 0], [1, 0]], [9, 8, 7]), state)
        assert float(judgment.weights[0]) == 0
    _, state = part(cohort_of([[1, 0], [1, 0]], [7, 8]), state)
    assert weights_of(part, cohort_of([[1, 0], [1, 0]], [9, 7]), state)[0] == 0
    alone = Defense((part,), Mean())
    verdict, _ = alone(cohort_of([[1, 0]], [9]), (state, None))
    assert verdict.skipped == "every client was rejected"


def test_the_removed_do_not_pull_the_aggregate() -> None:
    """The cosines of the others are to a sum without them, however long their rows are."""
    part = start_average(warm_up=3)
    _, state = weights_over(part, [cohort_of(ONE_OPPOSED)] * 4)
    quiet, loud = ([[1, 0.5], [1, -0.25], row] for row in ([0.0, 0.0], [-1e9, 1e9]))
    _, one = part(cohort_of(quiet), state)
    _, other = part(cohort_of(loud), state)
    assert torch.equal(one.rows[:2], other.rows[:2])


def test_the_absent_keep_their_reputation_and_newcomers_bring_the_fair_share() -> None:
    part = start_average()
    _, state = weights_over(part, [cohort_of(ONE_OPPOSED, [3, 4, 5])] * 2)
    for _ in range(3):
        _, state = part(cohort_of([[1, 0], [0, 1]], [10, 11]), state)
    found = weights_of(part, cohort_of([[1, 0]] * 4, [5, 99, 4, 3]), state)
    assert found == pytest.approx([0.61, 1, 1.195, 1.195])


def test_a_round_shares_out_what_its_participants_held() -> None:
    part = start_average()
    _, state = weights_over(part, [cohort_of(ONE_OPPOSED, [3, 4, 5])] * 2)
    before = weights_of(part, cohort_of([[1, 2], [3, 1], [-1, 1]], [5, 4, 99]), state)
    _, state = part(cohort_of([[1, 2], [3, 1], [-1, 1]], [5, 4, 99]), state)
    after = weights_of(part, cohort_of([[1, 2], [3, 1], [-1, 1]], [5, 4, 99]), state)
    assert before != after
    assert math.fsum(after) == pytest.approx(math.fsum(before))


def test_reputation_belongs_to_the_identity_not_to_the_row() -> None:
    part = start_average()
    _, state = part(cohort_of(ONE_OPPOSED, [3, 4, 5]), part.init())
    assert weights_of(part, cohort_of([[1, 0]] * 3, [5, 3, 4]), state) == pytest.approx([0.8, 1.1, 1.1])


rounds_of_rows = st.integers(1, 5).flatmap(
    lambda n: st.lists(
        st.lists(st.lists(st.integers(-6, 9).map(float), min_size=2, max_size=2), min_size=n, max_size=n),
        min_size=1,
        max_size=8,
    )
)


@given(rounds_of_rows, st.integers(0, 4), st.sampled_from([0.5, 0.8]), st.sampled_from(get_args(Start)))
def test_slow_twin(rounds: list[list[list[float]]], warm_up: int, decay: float, start: Start) -> None:
    """The authors' rule with everybody present, also from the fair share on.

    Whoever would sink below zero before it can be removed stays at zero. Thresholds within rounding,
    and aggregates whose direction is nothing but rounding, are left out.
    """
    part, n = RFFL(decay=decay, warm_up=warm_up, start=start), len(rounds[0])
    state, shares, reputable = part.init(), [1 / n] * n, set(range(n))
    for number, rows in enumerate(rounds):
        judgment, state = part(cohort_of(rows), state)
        total = math.fsum(judgment.weights.tolist())
        if not reputable:
            assert total == 0
            continue
        assert [weight / total for weight in judgment.weights.tolist()] == pytest.approx(shares, abs=1e-9)
        aggregate = [math.fsum(r * row[k] for r, row in zip(shares, rows, strict=True)) for k in range(2)]
        if 0 < math.hypot(*aggregate) < 1e-9:
            return
        agreement = [slow_cosine(row, aggregate) for row in rows]
        if number == 0 and start == "agreement":
            if not any(c > 0 for c in agreement):
                return  # nobody agrees: the authors would divide by zero
            past = [0.0] * n
        else:
            past = shares
        earned = [decay * r + (1 - decay) * c for r, c in zip(past, agreement, strict=True)]
        if any(abs(earned[i]) < 1e-9 for i in reputable):
            return
        earned = [max(0.0, r) if i in reputable else 0.0 for i, r in enumerate(earned)]
        if not any(earned):
            return  # nobody has anything left: the authors would divide by zero
        shares = [r / math.fsum(earned) for r in earned]
        if number >= warm_up:
            limit = (1 / 3) / len(reputable)
            if any(abs(shares[i] - limit) < 1e-9 for i in reputable):
                return
            reputable = {i for i in reputable if shares[i] >= limit}
            shares = [r if i in reputable else 0.0 for i, r in enumerate(shares)]
            shares = [r / math.fsum(shares) for r in shares]


def test_statistics_do_not_vote() -> None:
    _, quiet = weights_over(start_average(), [cohort_of([[1, 0, 0], [1, 1, 0], [-1, 0, 0]])] * 3)
    _, loud = weights_over(start_average(), [cohort_of([[1, 0, 1e6], [1, 1, -1e6], [-1, 0, 5]])] * 3)
    assert torch.equal(quiet.rows, loud.rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hostile_numbers(dtype: torch.dtype) -> None:
    part = start_average(warm_up=2)
    cohort = cohort_of([[1, 0], [1e30, 1e30], [0, 0], [1e-30, 0]], dtype=dtype)
    found, state = weights_over(part, [cohort] * 8)
    assert bool(state.rows.isfinite().all())
    assert all(weight >= 0 for row in found for weight in row)
    # The huge row is the aggregate: cosines 1/√2, 1, 0, 1/√2. In shares 0.2375 + 0.05 of that: 0.27286, 0.2875,
    # 0.2375, 0.27286, of 1.07071 together; times four.
    assert found[1] == pytest.approx([1.01934, 1.07405, 0.88726, 1.01934], abs=1e-5)


def test_one_client() -> None:
    found, _ = weights_over(start_average(), [cohort_of([[3, 4]])] * 12)
    assert found == [[pytest.approx(1)]] * 12
    found, _ = weights_over(start_average(), [cohort_of([[0, 0]])] * 12)
    assert found == [[pytest.approx(1)]] * 12


def test_a_saved_state_gives_the_same_verdict() -> None:
    part, rng = start_average(warm_up=2, threshold=0.9), torch.Generator().manual_seed(0)
    state = part.init()
    for number in range(4):
        rows = torch.randn(6, 2, generator=rng).tolist()
        _, state = part(cohort_of(rows, [number + i for i in range(6)]), state)
    cohort = cohort_of(torch.randn(6, 2, generator=rng).tolist(), list(range(6)))
    one, other = (part(cohort, memory) for memory in (state, save_and_load(state, part)))
    assert torch.equal(one[0].weights, other[0].weights)
    assert torch.equal(one[1].rows, other[1].rows)
    assert bool((one[0].weights == 0).any())  # somebody had been removed
    assert not bool((one[0].weights == 0).all())


def test_memory_is_bounded() -> None:
    part = start_average(capacity=1000)
    state = part.init()
    for start in range(0, 10_000, 400):
        ids = list(range(start, start + 400))[::-1]
        _, state = part(cohort_of([[3, 4]] * 400, ids), state)
        assert len(state.clients) <= 1000
    assert state.clients.tolist()[-800:] == list(range(9200, 10_000))  # the two latest rounds whole


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"decay": 1.0}, r"RFFL.decay must be in \[0, 1\), got 1.0"),
        ({"threshold": 1.0}, r"RFFL.threshold must be in \[0, 1\), got 1.0"),
        ({"threshold": -0.1}, r"RFFL.threshold must be in \[0, 1\), got -0.1"),
        ({"warm_up": -1}, r"RFFL.warm_up must be at least 0, got -1"),
        ({"capacity": 0}, r"RFFL.capacity must be at least 1, got 0"),
        ({"start": "zero"}, r"RFFL.start must be one of \('agreement', 'average'\), got 'zero'"),
    ],
)
def test_mistakes_are_named(options: dict[str, float | str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RFFL(**options)  # type: ignore[arg-type]
