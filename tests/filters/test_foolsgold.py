"""FoolsGold against its definition, by hand and by a slow twin."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean
from cosdefense.filters import FoolsGold
from doubles import cohort_of, save_and_load, slow_cosine, weights_of

FRESH = FoolsGold().init()


def test_sybils_count_nothing() -> None:
    # Two clients push the same way (similarity 1, difference 0), two go their own ways (difference 1).
    judgment, _ = FoolsGold()(cohort_of([[2, 0], [5, 0], [0, 1], [0, -3]]), FRESH)
    assert judgment.weights.tolist() == [0, 0, 1, 1]
    assert judgment.scores.tolist() == pytest.approx([1, 1, 0, 0], abs=1e-15)


def test_pinned_logit() -> None:
    # cos 60° = ½ between the first two; the third is opposite to the first. Differences ½, ½, 1.
    # ln(½ / ½) + ½ = ½; the largest difference is 1, whose logit is infinite and cut to 1.
    judgment, _ = FoolsGold()(cohort_of([[1, 0], [1, math.sqrt(3)], [-1, 0]]), FRESH)
    assert judgment.weights.tolist() == pytest.approx([0.5, 0.5, 1])
    assert judgment.scores.tolist() == pytest.approx([0.5, 0.5, 0])


def test_pinned_pardon() -> None:
    # Sybils (1, 0) twice, v = 1 each; an honest client at cos 0.7 to both, v = 0.7: its similarity becomes
    # 0.7 · 0.7 / 1 = 0.49. A fourth, v = 0, keeps the largest difference at 1. ln(0.51 / 0.49) + ½ = 0.5400.
    rows = [[1, 0], [1, 0], [0.7, math.sqrt(0.51)], [0, -1]]
    judgment, _ = FoolsGold()(cohort_of(rows), FRESH)
    assert judgment.weights.tolist() == pytest.approx([0, 0, math.log(0.51 / 0.49) + 0.5, 1])
    assert math.log(0.51 / 0.49) + 0.5 == pytest.approx(0.5400, abs=1e-4)


def test_differences_are_relative_to_the_largest() -> None:
    # cos 0.8 between two clients: difference 0.2 each, which is all the difference there is.
    assert weights_of(FoolsGold(), cohort_of([[1, 0], [4, 3]]), FRESH) == [1, 1]


def test_history_decides_not_the_round() -> None:
    # Alone in the first round (H = (10, 0) and (0, 10)); then both send (1, 1). H = (11, 1) and (1, 11):
    # cosine 22 / 122, the only one, so both count fully. Without the memory they would be sybils.
    part = FoolsGold()
    _, state = part(cohort_of([[10, 0], [0, 10], [-9, -9]], [1, 2, 3]), part.init())
    judgment, state = part(cohort_of([[1, 1], [1, 1], [-9, -9]], [1, 2, 3]), state)
    assert judgment.scores.tolist() == pytest.approx([22 / 122, 22 / 122, 0])
    assert weights_of(part, cohort_of([[1, 1], [1, 1], [-9, -9]]), part.init()) == [0, 0, 1]


def test_history_belongs_to_the_identity_not_to_the_row() -> None:
    # Clients 5 and 6 are sybils. Those who stand in their rows next time are not.
    part = FoolsGold()
    _, state = part(cohort_of([[3, 0], [3, 0], [0, 5]], [5, 6, 8]), part.init())
    found = weights_of(part, cohort_of([[0.1, 5], [0.1, -5], [0, 0]], [8, 9, 5]), state)
    moved = weights_of(part, cohort_of([[0, 0], [0.1, 5], [0.1, -5]], [5, 8, 9]), state)
    assert found == moved[1:] + moved[:1]
    judgment, _ = part(cohort_of([[0, 1], [1, 0]], [5, 6]), state)
    assert float(judgment.scores[0]) == pytest.approx(12 / math.sqrt(10 * 16))  # (3, 1) and (4, 0)


def test_the_absent_keep_their_history() -> None:
    part = FoolsGold()
    _, state = part(cohort_of([[3, 0], [4, 0]], [5, 6]), part.init())
    for _ in range(3):
        _, state = part(cohort_of([[0, 1], [-1, 0]], [7, 8]), state)
    nothing = torch.zeros(3, 2, dtype=torch.float64)
    assert state.lookup(torch.tensor([5, 6, 7]), nothing).tolist() == [[3, 0], [4, 0], [0, 3]]
    assert weights_of(part, cohort_of([[0, 0], [0, 0], [0, 0]], [5, 6, 7]), state) == [0, 0, 1]


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 6),
            st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=2),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_slow_twin(rounds: list[dict[int, list[float]]]) -> None:
    """The authors' algorithm with a plain dict for the histories."""
    part, known = FoolsGold(), dict[int, list[float]]()
    state = part.init()
    for sent in rounds:
        for client, row in sent.items():
            known[client] = [a + b for a, b in zip(known.get(client, [0.0, 0.0]), row, strict=True)]
        judgment, state = part(cohort_of(list(sent.values()), list(sent)), state)
        expected = slow_foolsgold([known[client] for client in sent])
        # Whole numbers below 26: different directions differ by more than 1e-6, and 1e-9 is rounding.
        assert judgment.weights.tolist() == pytest.approx(expected, abs=1e-9)


def slow_foolsgold(histories: list[list[float]]) -> list[float]:
    n = len(histories)
    similarity = [[0.0 if i == j else slow_cosine(histories[i], histories[j]) for j in range(n)] for i in range(n)]
    largest = [max(row) for row in similarity]
    for i in range(n):
        for j in range(n):
            if i != j and largest[i] < largest[j]:
                similarity[i][j] *= largest[i] / largest[j]
    weights = [min(1.0, max(0.0, 1 - max(row))) for row in similarity]
    weights = [weight if weight > 1e-14 else 0.0 for weight in weights]  # equal up to rounding
    if not any(weights):
        return weights
    weights = [weight / max(weights) for weight in weights]
    return [min(1.0, max(0.0, math.log(w / (1 - w)) + 0.5)) if 0 < w < 1 else w for w in weights]


def test_one_attacker_has_nobody_to_resemble() -> None:
    assert weights_of(FoolsGold(), cohort_of([[9, 9]]), FRESH) == [1]
    assert weights_of(FoolsGold(), cohort_of([[-9, -9], [1, 0], [0, 1]]), FRESH) == [1, 1, 1]


def test_when_all_are_one_the_round_is_skipped() -> None:
    defense = Defense((FoolsGold(),), Mean())
    verdict, _ = defense(cohort_of([[1, 2], [2, 4], [5, 10]]), defense.init())
    assert verdict.skipped == "every client was rejected"


def test_statistics_do_not_vote() -> None:
    assert weights_of(FoolsGold(), cohort_of([[2, 0, 1e3], [5, 0, -1e3], [0, 1, 1e3]]), FRESH) == [0, 0, 1]


def test_head_only() -> None:
    layout = Layout((("body", (1,)), ("head", (1, 2))), "head", 3)
    rows = torch.tensor([[5.0, 1.0, 0.0], [-5.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    cohort = Cohort.of(rows, torch.zeros(3), layout)
    judgment, state = FoolsGold(head_only=True)(cohort, FRESH)
    assert judgment.weights.tolist() == [0, 0, 1]
    assert state.rows.tolist() == [[1, 0], [2, 0], [0, 1]]  # no larger than what is compared
    assert weights_of(FoolsGold(head_only=False), cohort, FRESH) == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hostile_numbers(dtype: torch.dtype) -> None:
    """Huge sybils are sybils, round after round, even where their sum would overflow."""
    part, size = FoolsGold(), 0.9 * torch.finfo(dtype).max
    for rows in ([[1e30, 1e30], [2e30, 2e30]], [[size, size], [size, size]], [[1e-30, 0], [1e-35, 0]]):
        state = part.init()
        for _ in range(3):
            judgment, state = part(cohort_of([*rows, [1, -1], [0, 0]], dtype=dtype), state)
            assert judgment.weights.tolist()[:2] == [0, 0]
            assert bool(judgment.scores.isfinite().all())
            assert bool(state.rows.isfinite().all())


def test_a_saved_state_gives_the_same_verdict() -> None:
    part, rng = FoolsGold(), torch.Generator().manual_seed(0)
    state = part.init()
    for number in range(3):
        rows = torch.randn(6, 2, generator=rng).tolist()
        _, state = part(cohort_of(rows, [number + i for i in range(6)]), state)
    cohort = cohort_of(torch.randn(6, 2, generator=rng).tolist(), list(range(6)))
    one, other = (part(cohort, memory)[0] for memory in (state, save_and_load(state, part)))
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.scores, other.scores)
    assert one.weights.tolist() != weights_of(part, cohort, part.init())  # there was something to remember


def test_memory_is_bounded() -> None:
    part = FoolsGold(capacity=500)
    state = part.init()
    for start in range(0, 10_000, 200):
        ids = list(range(start, start + 200))[::-1]
        _, state = part(cohort_of([[float(client), 1.0] for client in ids], ids), state)
        assert len(state.clients) <= 500
    assert state.clients.tolist()[-400:] == list(range(9600, 10_000))  # the two latest rounds whole
    assert state.rows[-1].tolist() == [9999, 1]


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"FoolsGold.capacity must be at least 1, got 0"):
        FoolsGold(capacity=0)
