"""ByGARS and ByGARS++ against their definitions, by hand and by slow twins."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Defense, Filter
from cosdefense.aggregators import Mean
from cosdefense.filters import ByGARS, ByGARSPlusPlus
from doubles import Server, always, cohort_of, save_and_load, slow_cosine, weights_of

numbers = st.integers(-20, 20).map(float)
pairs = st.lists(numbers, min_size=2, max_size=2)
rows_of_two = st.lists(pairs, min_size=1, max_size=6)
BOTH = [ByGARS(steps=1), ByGARS(), ByGARSPlusPlus()]


def verdict_of(
    part: Filter, rows: list[list[float]], server: Server, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    defense = Defense((part,), Mean())
    verdict, _ = defense(cohort_of(rows, trusted_data=server, dtype=dtype), defense.init())
    return verdict.update


def test_pinned_values_after_one_look() -> None:
    # Cosines to (3, 4): 1, −1, 0; reputations 0.05 times that; rows of length 5, the malicious one reversed.
    judgment, _ = ByGARS(steps=1)(cohort_of([[6, 8], [-30, -40], [4, -3]], trusted_data=always(3, 4)), None)
    assert judgment.scores.tolist() == pytest.approx([-0.05, 0.05, 0])
    assert judgment.weights.tolist() == pytest.approx([0.05, 0.05, 0])
    assert judgment.updates is not None
    assert judgment.updates[:2, :2].flatten().tolist() == pytest.approx([3, 4, 3, 4])


def test_pinned_values_after_two_looks() -> None:
    # The server's update at w is (1 − 6 w₀, 1): at first (1, 1), of length √2. Clients (1, 0) and (0, 1) have
    # cosine 1/√2 each, so q = (0.3536, 0.3536) at rate 0.5, which leads to √2 q = (0.5, 0.5). There the server
    # would go (−2, 1): cosines −2/√5 and 1/√5. q = (0.3536 − 0.4472, 0.3536 + 0.2236).
    server = Server(lambda a, b: (1 - 6 * a, 1.0))
    judgment, _ = ByGARS(steps=2, rate=0.5)(cohort_of([[1, 0], [0, 1]], trusted_data=server), None)
    first, second = 0.5 / math.sqrt(2) - 1 / math.sqrt(5), 0.5 / math.sqrt(2) + 0.5 / math.sqrt(5)
    assert judgment.scores.tolist() == pytest.approx([-first, -second])
    assert judgment.weights.tolist() == pytest.approx([-first, second])
    assert judgment.updates is not None
    root = math.sqrt(2)
    assert judgment.updates[:, :2].flatten().tolist() == pytest.approx([-root, 0, 0, root])


def test_every_look_draws_other_batches() -> None:
    server = always(3, 4)
    ByGARS(steps=3)(cohort_of([[1, 2]], trusted_data=server, seed=41), None)
    assert server.seeds[0] == 41
    assert len(set(server.seeds)) == 3
    again = always(3, 4)
    ByGARS(steps=3)(cohort_of([[5, 5]], trusted_data=again, seed=41), None)
    assert again.seeds == server.seeds


def test_pinned_memory() -> None:
    # 0.1 · 1, then 0.9 · 0.1 + 0.1 · (−1) = −0.01: the sign changes in the second round.
    part, server = ByGARSPlusPlus(rate=0.1), always(3, 4)
    judgment, state = part(cohort_of([[6, 8]], [7], trusted_data=server), part.init())
    assert judgment.weights.tolist() == pytest.approx([0.1])
    judgment, _ = part(cohort_of([[-6, -8]], [7], trusted_data=server), state)
    assert judgment.scores.tolist() == pytest.approx([0.01])
    assert judgment.weights.tolist() == pytest.approx([0.01])
    assert judgment.updates is not None
    assert judgment.updates[0, :2].tolist() == pytest.approx([3, 4])


@given(rows_of_two, pairs, st.integers(1, 4))
def test_slow_twin(rows: list[list[float]], target: list[float], steps: int) -> None:
    """The server pulls the model towards `target`, so that every look sees another update."""
    rate = 0.25
    length = math.hypot(*target)
    scaled = [[x * length / math.hypot(*row) if any(row) else 0.0 for x in row] for row in rows]
    reputations = [0.0] * len(rows)
    for _ in range(steps):
        ahead = [math.fsum(q * row[k] for q, row in zip(reputations, scaled, strict=True)) for k in range(2)]
        own = [target[k] - ahead[k] for k in range(2)]
        if any(target) and math.hypot(*own) < 1e-6:
            return  # arrived: which way the rest points is rounding
        reputations = [q + rate * slow_cosine(row, own) for q, row in zip(reputations, rows, strict=True)]
    server = Server(lambda a, b: (target[0] - a, target[1] - b))
    judgment, _ = ByGARS(steps, rate)(cohort_of(rows, trusted_data=server), None)
    assert judgment.scores.tolist() == pytest.approx([-q for q in reputations], abs=1e-9)
    assert judgment.weights.tolist() == pytest.approx([abs(q) for q in reputations], abs=1e-9)
    assert judgment.updates is not None
    for found, row, q in zip(judgment.updates[:, :2].tolist(), scaled, reputations, strict=True):
        if abs(q) > 1e-9:  # a sign of zero is rounding
            assert found == pytest.approx([math.copysign(1, q) * x for x in row], abs=1e-9)


@given(st.lists(st.dictionaries(st.integers(0, 5), pairs, min_size=1, max_size=5), min_size=1, max_size=6), pairs)
def test_slow_twin_with_memory(rounds: list[dict[int, list[float]]], own: list[float]) -> None:
    """A plain dict by identity: clients come, go and return in any order, and the absent keep what they had."""
    part, known = ByGARSPlusPlus(rate=0.25), dict[int, float]()
    state = part.init()
    for sent in rounds:
        judgment, state = part(cohort_of(list(sent.values()), list(sent), trusted_data=always(*own)), state)
        for client, row in sent.items():
            known[client] = 0.75 * known.get(client, 0.0) + 0.25 * slow_cosine(row, own)
        assert judgment.scores.tolist() == pytest.approx([-known[client] for client in sent], abs=1e-12)
        assert judgment.weights.tolist() == pytest.approx([abs(known[client]) for client in sent], abs=1e-12)
    kept = state.lookup(torch.tensor(list(known)), torch.full((len(known), 1), torch.nan, dtype=torch.float64))
    assert kept[:, 0].tolist() == pytest.approx(list(known.values()), abs=1e-12)


@pytest.mark.parametrize("part", BOTH, ids=repr)
@given(rows=rows_of_two, own=pairs, flips=st.lists(st.booleans(), min_size=6, max_size=6))
def test_flipping_the_sign_changes_nothing(
    part: Filter, rows: list[list[float]], own: list[float], flips: list[bool]
) -> None:
    """The opposite update gets the opposite reputation and is reversed: the same update, bit by bit."""
    server = Server(lambda a, b: (own[0] - a, own[1] - b))
    whole = [[*row, 1.0] for row in rows]
    turned = [[-x for x in row] if flip else row for row, flip in zip(whole, flips, strict=False)]
    honest = verdict_of(part, whole, server)
    assert torch.equal(honest, verdict_of(part, turned, server))


def test_consistently_opposite_updates_are_reversed() -> None:
    part, server = ByGARSPlusPlus(), always(3, 4)
    states = [part.init(), part.init()]
    for number in range(5):
        rows = [[3.0 + number, 4.0, 1.0], [4.0, 3.0 + number, 2.0]]
        lies = [[-x for x in rows[0]], rows[1]]
        updates = []
        for i, sent in enumerate((rows, lies)):
            defense = Defense((part,), Mean())
            verdict, (states[i], _) = defense(cohort_of(sent, trusted_data=server), (states[i], None))
            updates.append(verdict.update)
        assert torch.equal(*updates)
    assert float(states[1].rows[0]) < 0 < float(states[0].rows[0])


@pytest.mark.parametrize("part", BOTH, ids=repr)
def test_statistics_do_not_vote(part: Filter) -> None:
    quiet, loud = ([[6, 8, size], [1, -3, -size]] for size in (0, 1e6))
    server = Server(lambda a, b: (3 - a, 4 - b))
    one, other = (part(cohort_of(rows, trusted_data=server), part.init())[0] for rows in (quiet, loud))
    assert torch.equal(one.scores, other.scores)
    assert torch.equal(one.weights, other.weights)


@pytest.mark.parametrize("part", BOTH, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_length_buys_no_influence(part: Filter, size: float, dtype: torch.dtype) -> None:
    plain = verdict_of(part, [[3, 4, 1], [4, 3, 1]], always(3, 4), dtype)
    strange = verdict_of(part, [[3, 4, 1], [4 * size, 3 * size, 1]], always(3, 4), dtype)
    assert strange.tolist() == pytest.approx(plain.tolist(), rel=1e-6)


@pytest.mark.parametrize("part", BOTH, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nobody_spoils_the_round_with_statistics_alone(part: Filter, dtype: torch.dtype) -> None:
    """No weights to scale by, and a large statistic: must not become infinity, nor NaN for the others."""
    server = Server(lambda a, b: (3 - a, 4 - b))
    cohort = cohort_of([[3, 4, 1], [0, 0, 1e20]], trusted_data=server, dtype=dtype)
    judgment, _ = part(cohort, part.init())
    assert judgment.weights[1] == 0
    assert judgment.updates is not None
    assert bool(judgment.updates.isfinite().all())
    assert verdict_of(part, [[3, 4, 1], [0, 0, 1e20]], server, dtype).tolist() == pytest.approx([3, 4, 9])


@pytest.mark.parametrize("part", BOTH, ids=repr)
def test_statistics_are_the_servers_own_and_never_turned_round(part: Filter) -> None:
    """Sign-flippers whose statistics are honest must not have them subtracted."""
    found = verdict_of(part, [[3, 4, 1], [-3, -4, 1], [-3, -4, 1], [-3, -4, 1e6]], always(3, 4), torch.float64)
    assert found.tolist() == pytest.approx([3, 4, 9])


@pytest.mark.parametrize("part", BOTH, ids=repr)
def test_one_bad_round_of_the_server_is_forgotten(part: Filter) -> None:
    defense = Defense((part,), Mean())
    state = defense.init()
    cohort = cohort_of([[3, 4], [4, 3]], trusted_data=always(float("inf"), 4))
    verdict, state = defense(cohort, state)
    assert verdict.skipped == "every client was rejected"
    verdict, _ = defense(cohort_of([[3, 4], [3, 4]], trusted_data=always(3, 4)), state)
    assert verdict.update[:2].tolist() == pytest.approx([3, 4])


@pytest.mark.parametrize("part", BOTH, ids=repr)
def test_a_server_that_stands_still_skips_the_round(part: Filter) -> None:
    defense = Defense((part,), Mean())
    verdict, _ = defense(cohort_of([[3, 4], [4, 3]], trusted_data=always(0, 0)), defense.init())
    assert verdict.skipped == "every client was rejected"


@pytest.mark.parametrize("part", BOTH, ids=repr)
def test_one_client(part: Filter) -> None:
    assert verdict_of(part, [[-60, -80]], always(3, 4))[:2].tolist() == pytest.approx([3, 4])


def test_reputation_belongs_to_the_identity_not_to_the_row() -> None:
    part, server = ByGARSPlusPlus(), always(3, 4)
    _, state = part(cohort_of([[3, 4], [-3, -4]], [5, 2], trusted_data=server), part.init())
    there = weights_of(part, cohort_of([[3, 4], [3, 4]], [5, 2], trusted_data=server), state)
    here = weights_of(part, cohort_of([[3, 4], [3, 4]], [2, 5], trusted_data=server), state)
    assert there == here[::-1] == pytest.approx([0.19, 0.01])


def test_a_saved_state_gives_the_same_verdict() -> None:
    part, server = ByGARSPlusPlus(), always(3, 4)
    rng = torch.Generator().manual_seed(0)
    state = part.init()
    for number in range(3):
        rows = torch.randn(6, 2, generator=rng).tolist()
        _, state = part(cohort_of(rows, [number + i for i in range(6)], trusted_data=server), state)
    cohort = cohort_of(torch.randn(6, 2, generator=rng).tolist(), list(range(6)), trusted_data=server)
    one, other = (part(cohort, memory)[0] for memory in (state, save_and_load(state, part)))
    assert torch.equal(one.weights, other.weights)
    assert one.updates is not None
    assert other.updates is not None
    assert torch.equal(one.updates, other.updates)


def test_memory_is_bounded() -> None:
    part, server = ByGARSPlusPlus(capacity=1000), always(3, 4)
    state = part.init()
    for start in range(0, 10_000, 400):
        ids = list(range(start, start + 400))[::-1]
        _, state = part(cohort_of([[3, 4]] * 400, ids, trusted_data=server), state)
        assert len(state.clients) <= 1000
    assert state.clients.tolist()[-800:] == list(range(9200, 10_000))  # the two latest rounds whole


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"ByGARS.steps must be at least 1, got 0"):
        ByGARS(steps=0)
    with pytest.raises(ValueError, match=r"ByGARS.rate must be in \(0, 1\], got 0.0"):
        ByGARS(rate=0.0)
    with pytest.raises(ValueError, match=r"ByGARSPlusPlus.rate must be in \(0, 1\], got 1.5"):
        ByGARSPlusPlus(rate=1.5)
    with pytest.raises(ValueError, match=r"ByGARSPlusPlus.capacity must be at least 1, got 0"):
        ByGARSPlusPlus(capacity=0)
