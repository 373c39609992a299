"""Rounds where updates are compared: against plain integers, forged reports, and what the helper refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from comparing_examples import COMPARED, ComparingExample, everybody, start_comparison
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from forgeries import with_words, write_forged
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_examples import THOROUGH, encode_update
from test_privacy import LIMIT, SAMPLES, chi_square

from cosdefense.secure.comparing_helper import ComparingHelper
from cosdefense.secure.comparing_leader import Compared
from cosdefense.secure.comparison import VOTE, Masked, Products, Projected, Weights
from cosdefense.secure.exchange import Checks, Outcome, TicketRequest
from cosdefense.secure.helper import Helper
from cosdefense.secure.leader import ServersDisagree
from cosdefense.secure.messages import Malformed
from cosdefense.secure.policy import Policy, Refused
from cosdefense.secure.projection import RING, SIZE, encode_reference
from cosdefense.secure.secret_mean import Lesson
from cosdefense.secure.terms import RefusedTerms, Terms
from cosdefense.secure.triples import NoTriple, deal_stocks

WITH_BUFFERS = replace(COMPARED, buffers=4, units=((2, 0), (2, 1)))
KEYS = [Ed25519PrivateKey.generate() for _ in range(5)]


def draw_rows(rng: np.random.Generator, terms: Terms, number: int) -> np.ndarray:
    """Updates of lengths 10⁻⁵ to 1 000. In some rounds two are equal or opposite, or one is zero."""
    rows = rng.normal(size=(terms.clients, terms.words)) * 10 ** rng.uniform(-5, 3, size=(terms.clients, 1))
    if number % 3 == 0:
        rows[0] = rows[1] * (-1) ** number
    if number % 5 == 0:
        rows[2] = 0
    return rows


def signed(words: list[int]) -> list[int]:
    return [word - 2**64 if word >= 2**63 else word for word in words]


def test_rounds_are_those_of_plain_integers() -> None:
    """Inner products and sums by Python's integers. 0 different ones."""
    rng, refused = np.random.default_rng(0), 0
    for number in range(2000 if THOROUGH else 150):
        terms = (COMPARED, WITH_BUFFERS, replace(COMPARED, references=2, clip=0.01))[number % 3]
        example, seen = start_comparison(terms, KEYS), list[Compared]()
        vectors = rng.normal(size=(terms.references or 0, terms.weights))
        encoded = [encode_update(row, [], terms) for row in draw_rows(rng, terms, number)]
        plain = [signed(update.words.tolist()) for update in encoded]
        weights = tuple(int(v) for v in rng.integers(0, VOTE + 1, terms.clients) * (rng.random(terms.clients) < 0.9))

        def decide(compared: Compared, weights: tuple[int, ...] = weights, seen: list[Compared] = seen) -> Any:
            seen.append(compared)
            return weights

        words = np.array([encode_reference(vector) for vector in vectors], np.uint64).reshape(-1, terms.weights)
        reports = [example.write(update, i) for i, update in enumerate(encoded)]
        opened = example.open(reports, decide, words)
        trainable = [row[: terms.weights] for row in plain]
        products = [[sum(map(int.__mul__, a, b)) for b in trainable] for a in trainable]
        public = [signed(row) for row in words.tolist()]
        assert seen[0].clients.tolist() == products
        assert seen[0].references.tolist() == [[sum(map(int.__mul__, a, v)) for v in public] for a in trainable]
        assert seen[0].squares == [sum(v * v for v in row) for row in public]
        counted = [weight for weight in weights if weight]
        stands_out = len(counted) >= 3 and max(counted) > 2 * min(counted) and 3 * max(counted) > sum(counted)
        if len(counted) < 3 or stands_out:
            assert opened.words is None
            assert opened.refused is not None
            refused += 1
        else:
            total = [sum(w * row[j] for w, row in zip(weights, plain, strict=True)) for j in range(terms.words)]
            assert opened.words is not None
            assert signed(opened.words.tolist()) == total
    assert 0 < refused < number


def test_missing_clients_leave_the_others() -> None:
    rows = draw_rows(np.random.default_rng(1), COMPARED, 1)
    example = start_comparison()
    reports = example.write_all(rows)
    reports[1] = replace(reports[1], signature=bytes(64))
    seen = list[Compared]()

    def decide(compared: Compared) -> tuple[int, ...]:
        seen.append(compared)
        return (VOTE,) * 3

    opened = example.open([reports[0], reports[1], reports[3], reports[4]], decide)
    assert opened.outcomes == (Outcome.VALID, Outcome.UNSIGNED, Outcome.VALID, Outcome.VALID)
    plain = [signed(encode_update(rows[i], [], COMPARED).words.tolist()) for i in (0, 3, 4)]
    assert seen[0].clients.tolist() == [[sum(map(int.__mul__, a, b)) for b in plain] for a in plain]
    assert opened.words is not None
    assert signed(opened.words.tolist()) == [VOTE * sum(column) for column in zip(*plain, strict=True)]


def test_below_the_quorum_nothing_is_compared() -> None:
    example = start_comparison()
    reports = example.write_all(draw_rows(np.random.default_rng(1), COMPARED, 1))[:2]
    opened = example.open(reports, lambda compared: pytest.fail("products of two were opened"))
    assert opened.refused == "2 valid reports, and the quorum is 3"
    assert len(example.triples) == 1
    with pytest.raises(Refused, match="the quorum is 3"):
        example.helper.project(Checks(1, (Outcome.MISSING,) * 2, (None,) * 2))


WRAPPING: dict[str, tuple[list[int], int]] = {
    "one word of half the modulus": ([0], -(2**63)),
    "two of them": ([1, 2], -(2**63)),
    "multiples of 2**32, whose square is zero": ([0, 1, 2], 2**32),
    "all of them": (list(range(14)), 2**32),
    "multiples of 2**48": ([3], 2**48),
    "a quarter of the modulus": ([0, 5], 2**62),
    "a coordinate of 64 clips": ([4], 64 * 4 << COMPARED.fraction),
}


@pytest.mark.parametrize("name", WRAPPING)
@pytest.mark.parametrize("claimed", ["its own sketch", "no sketch", "the sketch of another update"])
def test_updates_that_wrap_or_are_too_long_are_refused(name: str, claimed: str) -> None:
    """Without the proof of length these would have no length in the opened products, and ruin the sum."""
    rng = np.random.default_rng(2)
    edits: dict[str, Callable[[list[int]], list[int]]] = {
        "its own sketch": lambda values: values,
        "no sketch": lambda values: [0] * len(values),
        "the sketch of another update": lambda values: rng.integers(-(2**20), 2**20, len(values)).tolist(),
    }
    for _ in range(100 if THOROUGH else 3):
        example = start_comparison(COMPARED, KEYS)
        rows = draw_rows(rng, COMPARED, 1)
        reports = example.write_all(rows)
        where, value = WRAPPING[name]
        forged = with_words(encode_update(rows[0], [], COMPARED), where, value, COMPARED)
        reports[0] = write_forged(example.round, 0, forged, weights=edits[claimed])
        opened = example.open(reports)
        assert opened.outcomes == (Outcome.UNPROVEN, *[Outcome.VALID] * 4)


def test_honest_reports_are_never_refused() -> None:
    rng = np.random.default_rng(3)
    for number in range(1000 if THOROUGH else 20):
        example = start_comparison(WITH_BUFFERS, KEYS)
        opened = example.open(example.write_all(draw_rows(rng, WITH_BUFFERS, number)))
        assert set(opened.outcomes) == {Outcome.VALID}


def advance(example: ComparingExample) -> tuple[Checks, Projected, Masked]:
    """The leader's messages of an honest round, up to the inner products."""
    kept: dict[str, Any] = {}

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            def call(message: Any) -> Any:
                kept[name] = message
                kept[f"{name} answer"] = getattr(example.helper, name)(message)
                return kept[f"{name} answer"]

            return call

    def stop(compared: Compared) -> tuple[int, ...]:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        example.open(example.write_all(draw_rows(np.random.default_rng(4), COMPARED, 1)), stop, helper=Recorder())
    return kept["project"], kept["project answer"], kept["multiply"]


def test_each_step_happens_once_and_in_order() -> None:
    example = start_comparison(count=3)
    helper, number = example.helper, example.round.ticket.number
    empty = np.zeros((5, SIZE), np.uint64)
    with pytest.raises(Refused, match="needs answers"):
        helper.project(Checks(number, (), ()))
    with pytest.raises(Refused, match="not projected yet"):
        helper.multiply(Masked(number, empty, empty[:0]))
    with pytest.raises(Refused, match="not compared yet"):
        helper.settle_weights(Weights(number, (VOTE,) * 5))
    checks, projected, masked = advance(example)
    assert helper.project(checks) is projected
    assert len(helper._triples) == 2  # a repeated request costs no triple
    changed = replace(checks, answers=(None, *checks.answers[1:]), outcomes=(Outcome.MISSING, *checks.outcomes[1:]))
    with pytest.raises(Refused, match="are projected"):
        helper.project(changed)
    assert helper._comparison is not None
    assert helper._comparison.secret is None  # the triple is forgotten with its use
    products = helper.multiply(masked)
    assert helper.multiply(masked) is products
    with pytest.raises(Refused, match="are compared"):  # a second answer under one mask would show a projection
        helper.multiply(replace(masked, masked=masked.masked + np.uint64(1)))
    with pytest.raises(Refused, match="settled by weights"):
        helper.settle(checks)
    settled = helper.settle_weights(Weights(number, (VOTE,) * 5))
    assert settled.words is not None
    assert helper._round is not None
    assert not helper._round.seeds
    assert helper.settle_weights(Weights(number, (VOTE,) * 5)) is settled
    with pytest.raises(Refused, match="is settled"):
        helper.settle_weights(Weights(number, (VOTE, VOTE, VOTE, VOTE, 0)))
    for step in (
        lambda: helper.project(replace(checks, number=number + 1)),
        lambda: helper.multiply(replace(masked, number=number + 1)),
        lambda: helper.settle_weights(Weights(number + 1, (VOTE,) * 5)),
    ):
        with pytest.raises(Refused, match="is not the current one"):
            step()


def test_a_new_ticket_ends_the_comparison_and_takes_a_new_triple() -> None:
    example = start_comparison(count=2)
    _, projected, masked = advance(example)
    ticket = example.helper.issue_ticket(TicketRequest(COMPARED, b"", b"\x01" * 32))
    with pytest.raises(Refused, match="is not the current one"):
        example.helper.multiply(masked)
    with pytest.raises(Refused, match="not projected yet"):
        example.helper.multiply(replace(masked, number=ticket.number))
    again = replace(example, round=replace(example.round, ticket=ticket))
    _, later, _ = advance(again)
    assert (projected.triple, later.triple) == (0, 1)
    assert projected.key != later.key
    with pytest.raises(NoTriple):
        example.triples.take(0)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ((VOTE,) * 4, "weights must be"),
        ((VOTE,) * 6, "weights must be"),
        ((VOTE + 1, VOTE, VOTE, VOTE, VOTE), "weights must be"),
        ((2**63, 1, 1, 1, 1), "weights must be"),
    ],
)
def test_weights_out_of_range_are_refused(weights: tuple[int, ...], problem: str) -> None:
    example = start_comparison()
    advance(example)
    with pytest.raises(Refused, match=problem):
        example.helper.settle_weights(Weights(1, weights))


def test_weights_of_refused_reports_are_refused() -> None:
    example = start_comparison()
    reports = example.write_all(draw_rows(np.random.default_rng(5), COMPARED, 1))
    reports[2] = replace(reports[2], signature=bytes(64))

    class Cheating:
        """A leader that counts a report that is not valid."""

        def __getattr__(self, name: str) -> Any:
            step = getattr(example.helper, name)
            return step if name != "settle_weights" else lambda _: step(Weights(1, (VOTE,) * 5))

    with pytest.raises(Refused, match="0 for others"):
        example.open(reports, helper=Cheating())


def test_sums_below_the_smallest_never_leave_the_helper() -> None:
    """Whatever weights a leader sends."""
    rng, given_out = np.random.default_rng(6), 0
    for _ in range(1000 if THOROUGH else 100):
        example = start_comparison(replace(COMPARED, smallest=3 + int(rng.integers(2)), quorum=4), KEYS)
        advance(example)
        weights = tuple(int(w) for w in rng.integers(0, VOTE + 1, 5) * (rng.random(5) < rng.random()))
        settled = example.helper.settle_weights(Weights(1, weights))
        counted = [w for w in weights if w]
        enough = len(counted) >= example.terms.smallest
        assert enough or settled.words is None
        if settled.words is not None:
            given_out += 1
            assert max(counted) <= 2 * min(counted) or max(counted) * example.terms.smallest <= sum(counted)
        else:
            assert settled.refused
            with pytest.raises(Refused, match="is settled"):  # and no second try
                example.helper.settle_weights(Weights(1, (VOTE,) * 5))
    assert given_out


def test_servers_that_do_not_fit_together_stop() -> None:
    example = start_comparison()
    reports = example.write_all(draw_rows(np.random.default_rng(7), COMPARED, 1))
    other, _ = deal_stocks(5)
    with pytest.raises(ServersDisagree, match="different deals"):
        replace(example, triples=other).open(reports)


def test_helpers_must_agree_to_comparisons_and_have_triples() -> None:
    nodes = tuple(key.public_key().public_bytes_raw() for key in KEYS)
    request = TicketRequest(COMPARED, b"", bytes(32))
    with pytest.raises(Refused, match="inner products of updates are not opened here"):
        Helper(Ed25519PrivateKey.generate(), nodes).issue_ticket(request)
    example = start_comparison(count=1)
    example.open(example.write_all(draw_rows(np.random.default_rng(8), COMPARED, 1)))
    ticket = example.helper.issue_ticket(replace(request, rest=b"\x02" * 32))
    with pytest.raises(Refused, match="all 1 triples were used"):
        advance(replace(example, round=replace(example.round, ticket=ticket)))
    _, few = deal_stocks(4)
    helper = ComparingHelper(Ed25519PrivateKey.generate(), nodes, Policy(comparisons=True), triples=few)
    ticket = helper.issue_ticket(request)
    small = replace(example, helper=helper, round=replace(example.round, helper=helper, ticket=ticket, keys=KEYS))
    with pytest.raises(Refused, match="at most 4 rows, got 5"):
        advance(small)


@pytest.mark.parametrize(
    "changes",
    [
        {"references": -1}, {"references": 9}, {"head": 8}, {"weights": 0}, {"clip": None}, {"references": None},
    ],
)  # fmt: skip
def test_terms_that_cannot_be_compared_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RefusedTerms):
        replace(COMPARED, **changes)
    assert Terms.from_json(COMPARED.to_json()) == COMPARED


@pytest.mark.slow
@pytest.mark.parametrize("value", [0, 1, 2**26])
def test_every_byte_that_a_server_sees_is_uniform(value: int) -> None:
    """Words of a report, and what the two servers send each other about one and the same update."""
    terms = replace(COMPARED, weights=1, references=0, clip=2.0**20)
    views: dict[str, list[int]] = {}
    for _ in range(SAMPLES):
        example = start_comparison(terms, KEYS)
        update = replace(encode_update(np.zeros(1), [], terms), words=np.array([value], np.uint64))
        reports = [example.write(update, i) for i in range(3)]
        kept: dict[str, np.ndarray] = {}

        class Recorder:
            def __init__(self, helper: ComparingHelper, kept: dict[str, np.ndarray]) -> None:
                self.helper, self.kept = helper, kept

            def __getattr__(self, name: str) -> Any:
                return getattr(self.helper, name)

            def project(self, message: Checks) -> Projected:
                found = self.helper.project(message)
                self.kept["leader: masked"] = found.masked[0]
                return found

            def multiply(self, message: Masked) -> Products:
                self.kept["helper: masked"] = message.masked[0]
                found = self.helper.multiply(message)
                self.kept["leader: products"] = found.clients[0]
                return found

        example.open(reports, everybody, helper=Recorder(example.helper, kept))
        kept["leader: words"] = RING.from_bytes(reports[0].words)
        for name, words in kept.items():
            data = words[:1].tobytes()
            views.setdefault(f"{name}, low", []).append(data[0])
            views.setdefault(f"{name}, high", []).append(data[7])
    assert len(views) == 8
    for name, values in views.items():
        assert chi_square(values) < LIMIT, name


def test_the_projection_is_drawn_when_the_reports_are_fixed() -> None:
    """A client that knows the key could choose its projection: no step before this one may use it."""
    example, drawn = start_comparison(), list[bool]()

    def draw() -> bytes:
        assert example.helper._round is not None
        drawn.append(len(example.helper._round.reports) == 5 and example.helper._round.checks is not None)
        return b"\x01" * 32

    example.helper._draw_key = draw
    _, projected, _ = advance(example)
    assert (drawn, projected.key) == ([True], b"\x01" * 32)
    keys = {advance(start_comparison(COMPARED, KEYS))[1].key for _ in range(5)}
    assert len(keys) == 5


def written() -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    rng = np.random.default_rng(10)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.integers(0, 2**64, (rows, columns), dtype=np.uint64)

    outcomes = (Outcome.VALID, Outcome.UNPROVEN, Outcome.VALID)
    return {
        "projected": (
            Projected(3, outcomes, bytes(32), bytes(32), 5, matrix(2, SIZE)).to_bytes(),
            Projected.from_bytes,
        ),
        "masked": (Masked(3, matrix(2, SIZE), matrix(1, SIZE)).to_bytes(), Masked.from_bytes),
        "products": (Products(3, matrix(2, 2), matrix(2, 1)).to_bytes(), lambda b: Products.from_bytes(b, 2, 1)),
        "weights": (Weights(3, (0, 5, VOTE)).to_bytes(), Weights.from_bytes),
        "projected with a mean": (
            Projected(3, outcomes, bytes(32), bytes(32), 5, matrix(6, SIZE), 2).to_bytes(),
            Projected.from_bytes,
        ),
        "masked with a mean": (Masked(3, matrix(6, SIZE), matrix(1, SIZE), True).to_bytes(), Masked.from_bytes),
        "products with a mean": (
            Products(3, matrix(6, 6), matrix(2, 1)).to_bytes(),
            lambda b: Products.from_bytes(b, 2, 1, True),
        ),
        "weights with a lesson": (
            Weights(3, (0, 5, VOTE), Lesson(False, 1, ((0, 2**40, 3), (0, 1, 2)))).to_bytes(),
            Weights.from_bytes,
        ),
    }


MESSAGES = written()


@pytest.mark.parametrize("kind", MESSAGES)
def test_messages_are_read_as_written_and_no_other_length_is(kind: str) -> None:
    data, read = MESSAGES[kind]
    assert read(data).to_bytes() == data
    for wrong in (data[:-1], data + b"\0", data[: len(data) // 2], b"", data[8:]):
        with pytest.raises(Malformed):
            read(wrong)


@pytest.mark.parametrize("kind", MESSAGES)
@settings(max_examples=50)
@given(st.data())
def test_any_bytes_are_refused_or_read_exactly(kind: str, data: st.DataObject) -> None:
    good, read = MESSAGES[kind]
    if data.draw(st.booleans()):
        given_bytes = data.draw(st.binary(max_size=200))
    else:
        changed = bytearray(good)
        for at in data.draw(st.lists(st.integers(0, min(len(good), 120) - 1), max_size=4)):
            changed[at] = data.draw(st.integers(0, 255))
        given_bytes = bytes(changed)
    try:
        found = read(given_bytes)
    except Malformed:
        return
    assert found.to_bytes() == given_bytes
