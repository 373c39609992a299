"""Claims and decisions in integers, against fractions and against the float32 rules."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_examples import CLIPPED, SCALED, TERMS, THOROUGH, draw_head, draw_updates, encode_update

from cosdefense import Cohort, Judgment, Layout
from cosdefense.filters import CosDefense, NormLimit
from cosdefense.secure.encoding import encode_public_head
from cosdefense.secure.rule import decide, smallest_opening
from cosdefense.secure.statements import ONE, Claim, Squares, claim, statements
from cosdefense.secure.terms import RefusedTerms, Terms


def as_claims(cosines: list[int]) -> list[Claim]:
    return [Claim(q) for q in cosines]


def wide(terms: Terms, n: int, **changes: object) -> Terms:
    return replace(terms, clients=max(n, 5), **changes)  # type: ignore[arg-type]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(-(2**47), 2**47), st.integers(-(2**31), 2**31)), min_size=1, max_size=6))
def test_a_claim_is_the_floor_of_the_cosine(pairs: list[tuple[int, int]]) -> None:
    head, theta = np.array([a for a, _ in pairs]), [b for _, b in pairs]
    if not head.any() or not any(theta):
        return
    terms = replace(TERMS, head=len(theta), weights=0)
    encoded = encode_update(np.zeros(len(theta)), theta, terms)
    encoded = replace(encoded, head=head)
    q = claim(encoded, theta, terms).cosine
    product = sum(int(a) * b for a, b in zip(head.tolist(), theta, strict=True))
    square = Fraction(product**2, sum(v * v for v in head.tolist()) * sum(v * v for v in theta))
    assert Fraction(q, ONE) ** 2 <= square < Fraction(q + 1, ONE) ** 2
    assert 0 <= q <= ONE
    squares = Squares(sum(v * v for v in head.tolist()), product**2, 0, 0)
    for shift, holds in ((0, True), (1, False), (-1, False)):
        if q + shift >= 0:
            found = statements(Claim(q + shift), theta, terms)
            assert all(s.constant + s.linear_part(squares) >= 0 for s in found) is holds


@pytest.mark.parametrize("threshold", ["mean", "mean+std", "mad"])
def test_decisions_are_those_of_cosdefense(threshold: str) -> None:
    """The integer rule against the float32 filter: they may differ only where a score is at the threshold."""
    rng, differences = np.random.default_rng(3), 0
    rounds = 20_000 if THOROUGH else 100
    for _ in range(rounds):
        claims, terms, judgment = draw_round(rng, 40, threshold, 1e-3)
        decision = decide(claims, terms, None)
        if decision.refused is not None:
            assert int((judgment.weights != 0).sum()) < terms.smallest
            continue
        assert np.allclose(decision.scores, judgment.scores.numpy(), atol=1e-5)
        differences += [w > 0 for w in decision.weights] != (judgment.weights != 0).tolist()
    assert differences <= rounds // 2000


def test_decisions_differ_from_cosdefense_only_at_rounding() -> None:
    """Heads of 1,280 coordinates, updates of 10⁻⁴ to 10⁻²: a client that only one rule accepts is at the mean."""
    rng, differences, rounds = np.random.default_rng(5), [], 100_000 if THOROUGH else 500
    for _ in range(rounds):
        claims, terms, judgment = draw_round(rng, 1280, "mean", float(10 ** rng.uniform(-4, -2)))
        cosines = [q.cosine for q in claims]
        accepted = [10 * q < sum(cosines) for q in cosines]  # the integer rule, written out
        decision = decide(claims, terms, None)
        if decision.refused is None:
            assert [w > 0 for w in decision.weights] == accepted
        else:
            assert sum(accepted) < terms.smallest
        for q, ours, theirs in zip(cosines, accepted, (judgment.weights != 0).tolist(), strict=True):
            if ours != theirs:
                differences.append(abs(q - sum(cosines) / 10) / ONE)
    assert max(differences, default=0.0) < 2**-20, differences
    assert len(differences) <= rounds // 10_000, differences


def draw_round(rng: np.random.Generator, k: int, threshold: str, scale: float) -> tuple[list[Claim], Terms, Judgment]:
    """The claims of ten clients with random heads of k coordinates, and what the float32 filter decides about them."""
    n = 10
    terms = wide(replace(TERMS, head=k, weights=0), n, threshold=threshold, deviations=0.7)
    layout = Layout((("fc", (k, 1)),), "fc", k)
    theta, rows = rng.normal(size=k).astype("f4"), (rng.normal(size=(n, k)) * scale).astype("f4")
    cohort = Cohort.of(torch.from_numpy(rows), torch.from_numpy(theta), layout)
    judgment, _ = CosDefense(None, threshold, 0.7)(cohort, None)  # type: ignore[arg-type]
    public = encode_public_head(theta)
    return [claim(encode_update(row.astype("f8"), public, terms), public, terms) for row in rows], terms, judgment


def test_norm_limit_is_that_of_the_filter() -> None:
    """Lengths are claimed in steps of 1/256 of the running median, so the two memories stay within a percent."""
    rng, n, d = np.random.default_rng(4), 12, 14
    terms, layout, limit = wide(SCALED, n), Layout((("fc", (d, 1)),), "fc", d), NormLimit()
    head = draw_head(rng, terms)
    theta, memory, state, compared = encode_public_head(head), None, None, 0
    for _ in range(30):
        rows = rng.normal(size=(n, d)) * rng.uniform(0.5, 1.5, size=(n, 1))
        rows[0] *= rng.choice([1, 10])
        cohort = Cohort.of(torch.from_numpy(rows), torch.zeros(d, dtype=torch.float64), layout)
        judgment, state = limit(cohort, state)
        assert terms.norm_limit is not None
        now = terms if memory is None else replace(
            terms, clip=memory, norm_limit=replace(terms.norm_limit, started=True)
        )  # fmt: skip
        claims = [claim(encode_update(row, theta, now), theta, now) for row in rows]
        decision = decide(claims, now, memory)
        if decision.refused is None:
            rejected = [math.isnan(score) for score in decision.scores]
            assert rejected == (judgment.weights == 0).tolist()
            memory, compared = decision.memory, compared + 1
            assert memory == pytest.approx(state, rel=0.01)
        else:
            state = memory
    assert compared > 15


def test_a_model_that_no_longer_changes_has_another_round() -> None:
    """All norms are zero: the running median falls, and stays where terms can express it."""
    assert SCALED.norm_limit is not None
    terms = replace(SCALED, norm_limit=replace(SCALED.norm_limit, started=True))
    for _ in range(400):
        decision = decide([Claim(5, 1)] * 5, terms, terms.clip)
        terms = replace(terms, clip=decision.memory)
    assert terms.clip == 2.0**-20


def test_ties_accept_everybody() -> None:
    assert decide(as_claims([5, 5, 5, 5]), TERMS, None).weights == (1, 1, 1, 1)
    assert decide(as_claims([5, 21, 5, 5]), TERMS, None).weights == (1, 1, 1, 1)
    assert decide(as_claims([5, 22, 5, 5]), TERMS, None).weights == (1, 0, 1, 1)


def test_claims_mean_nothing_where_the_global_head_is_zero() -> None:
    """No statement is about them then, so that a client can claim anything."""
    decision = decide(as_claims([0, 1 << 24, 7, 0]), TERMS, None, with_cosine=False)
    assert decision.weights == (1, 1, 1, 1)
    assert decision.scores == (0.0, 0.0, 0.0, 0.0)


def test_smallest() -> None:
    assert [smallest_opening(0.2, n) for n in (3, 5, 10, 100)] == [3, 3, 4, 22]
    assert smallest_opening(0.3, 10) == 5
    assert smallest_opening(0.29, 100) == 31  # 0.29 · 100 is 28.999999999999996 in floats


def test_sums_of_fewer_than_smallest_are_refused() -> None:
    rng = np.random.default_rng(5)
    for _ in range(1000):
        n = int(rng.integers(0, 12))
        claims = as_claims(rng.integers(0, 1 << 20, n).tolist())
        terms = wide(TERMS, n, smallest=(s := int(rng.integers(3, 6))), quorum=s)
        decision = decide(claims, terms, None)
        if decision.refused is None:
            assert decision.n_accepted >= terms.smallest
        else:
            assert decision.n_accepted == 0
            assert str(terms.smallest) in decision.refused


def test_no_client_has_more_than_its_share_of_the_weight() -> None:
    lengths = [1, 4000, 4000, 4000, 4000]
    assert SCALED.norm_limit is not None
    terms = replace(SCALED, norm_limit=replace(SCALED.norm_limit, max_ratio=100.0, quantile=0.0, started=True))
    decision = decide([Claim(5, length) for length in lengths], terms, 4.0)
    assert decision.refused is not None
    assert "1/3 of the weight" in decision.refused


def test_terms_survive_json_and_refuse_everything_else() -> None:
    for terms in (TERMS, CLIPPED, SCALED, replace(CLIPPED, buffers=3, units=((3, -2),))):
        assert Terms.from_json(terms.to_json()) == terms
    good, clipped = TERMS.to_json(), CLIPPED.to_json()
    for text in (
        "", "[]", "{}", "null", '{"version":2}', "[" * 100_000, good + " ", good.replace("8.0", "8"),
        good.replace('"smallest":3', '"smallest":2'), good.replace('"smallest":3', '"smallest":true'),
        good[:-1] + ',"smallest":3}', good.replace('"smallest":3', '"smallest":2,"smallest":3'),  # a key twice
        good.replace('"clients":5', f'"clients":{"9" * 5000}'), good.replace('"head":8', '"head":-8'),
        clipped.replace("4.0", "NaN"), clipped.replace("4.0", "1e300"), clipped.replace("4.0", "-4.0"),
    ):  # fmt: skip
        with pytest.raises(RefusedTerms):
            Terms.from_json(text)


WEIRD: list[Any] = [
    None, True, 0, -1, 1, 3, 2**63, 10**400, 0.0, -0.0, 5e-324, 2.0**-20, 2.0**-21, 1.5, 2.0**20, 1e308,
    "", "mad", "\ud800",
    [], [[]], [[4, 64]], [[4, -64]], [[0, 0]] * 50 + [[4, 0]], [[4.0, 0]], {}, {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("terms", [TERMS, SCALED, replace(CLIPPED, buffers=4, units=((4, 0),))])
def test_weird_terms_are_refused_or_can_be_used(terms: Terms) -> None:
    """Whatever a leader asks for: a helper that agreed to it must not fail later."""
    table, used = json.loads(terms.to_json()), 0
    changed = [{**table, name: value} for name in table for value in WEIRD]
    if terms.norm_limit is not None:
        limit = table["norm_limit"]
        changed += [{**table, "norm_limit": {**limit, name: value}} for name in limit for value in WEIRD]
    for entry in changed:
        try:
            found = Terms.from_json(json.dumps(entry, sort_keys=True, separators=(",", ":")))
        except RefusedTerms:
            continue
        length = 0 if found.norm_limit is None else 256
        claims = [Claim(cosine, length and length + cosine % 7) for cosine in (0, 5, 9, 1 << 20, 1 << 24)]
        decision = decide(claims[: found.clients], found, found.clip)
        assert len(decision.weights) == len(claims[: found.clients])
        assert statements(claims[0], [1] * found.head, found)
        used += 1
    assert used > 20


@pytest.mark.parametrize("terms", [TERMS, CLIPPED, SCALED])
def test_no_sum_of_honest_words_wraps(terms: Terms) -> None:
    rng = np.random.default_rng(6)
    for n in (5, 10, 16, 100, 1000):
        many = replace(terms, clients=n)
        longest = np.zeros(many.head + many.weights)
        longest[-1] = 1e9
        encoded = encode_update(longest, [1] * many.head, many)
        largest = abs(int(many.ring.to_signed(encoded.words)[-1]))
        assert largest > 0
        assert largest * n * (256 if terms.norm_limit else 1) < 2 ** (many.ring.bits - 1)
        assert draw_updates(rng, terms, draw_head(rng, terms)).any()
