"""What each server sees has the same distribution whatever the update is, except for what is opened."""

from __future__ import annotations

import io
import logging
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from secure_examples import CLIPPED, TERMS, THOROUGH, Example, draw_head, draw_updates, encode_update, start_round

from cosdefense.secure.encoding import Encoded
from cosdefense.secure.exchange import Checks, Reports
from cosdefense.secure.halves import NUMBER, SLACK, Answers, Shape, answer
from cosdefense.secure.proof import ELEMENT, P
from cosdefense.secure.report import Report

# χ² of bytes with 255 degrees of freedom, or of their highest four bits with 15: above the limit once in a million.
SAMPLES, BINS, LIMIT = (10_000, 256, 380.0) if THOROUGH else (200, 16, 57.0)
EXTREMES = (0, 1, 2**47 - 1)


def chi_square(values: list[int]) -> float:
    counts = np.bincount(np.array(values) // (256 // BINS), minlength=BINS)
    expected = len(values) / BINS
    return float(((counts - expected) ** 2 / expected).sum())


def reports_of(value: int, n: int) -> tuple[Example, list[Report]]:
    """Reports of updates whose head and words are all this integer."""
    terms = replace(TERMS, head=2, weights=2)
    example = start_round(terms, np.array([1.0, -1.0]))
    head = np.array([value, value], np.int64) if value else np.array([0, 1], np.int64)
    encoded = Encoded(head, terms.ring.from_signed(np.array([value % 2**24] * 2, np.int64)))
    return example, [example.write(encoded, i % 5) for i in range(n)]


def answer_of_helper(example: Example, report: Report) -> Answers:
    """What the helper answers for a report, each in a round of its own."""
    fresh = replace(example.helper._round, body=None, checks=None, settlement=None)  # type: ignore[type-var]
    example.helper._round = fresh
    (found,) = example.helper.check_reports(Reports(example.ticket.number, (report.for_helper(),))).answers
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("value", EXTREMES)
def test_every_byte_that_a_server_sees_is_uniform(value: int) -> None:
    """The leader's halves of head, words and proof, and the answers that the helper gets."""
    example, reports = reports_of(value, SAMPLES)
    views: dict[str, list[int]] = {name: [] for name in ("head low", "head high", "word low", "word high", "proof")}
    views |= {"slack low": [], "slack high": [], "answers to the helper": [], "answers to the leader": []}
    shape = Shape.of(example.terms, with_cosine=True)
    for report in reports:
        head = report.rest[32 : 32 + NUMBER]
        views["head low"].append(head[0])
        views["head high"].append(head[NUMBER - 1])
        views["word low"].append(report.words[0])
        views["word high"].append(report.words[3])
        slack = report.rest[32 + NUMBER * shape.head :][:SLACK]
        views["slack low"].append(slack[0])
        views["slack high"].append(slack[SLACK - 1])
        proof = report.rest[-ELEMENT * shape.proof :]
        views["proof"].append(proof[ELEMENT])
        half, shown = report.leader_half(example.terms, with_cosine=True), report.for_helper()
        keys = shown.keys(example.ticket)
        transcript = keys.transcript(report.claim, shown.rest)
        found = answer(half, keys, report.claim, transcript, example.theta, example.terms, leader=True)
        views["answers to the helper"].append(found.elements[0] & 255)
        views["answers to the leader"].append(answer_of_helper(example, report).elements[0] & 255)
    for name, seen in views.items():
        assert chi_square(seen) < LIMIT, name


def test_what_a_server_receives_follows_from_what_it_has() -> None:
    """A simulator that knows one server's half, the claim and that the report is valid writes the other's answers.

    The evaluations of the columns are blinded by elements that the server does not know, so they are drawn at random;
    everything else is determined. The simulated answers pass the same check.
    """
    rng = np.random.default_rng(0)
    head = draw_head(rng, CLIPPED)
    example = start_round(CLIPPED, head)
    shape = Shape.of(CLIPPED, with_cosine=True)
    for row in draw_updates(rng, CLIPPED, head, 1)[:3]:
        report = example.write(encode_update(row, example.theta, CLIPPED), 0)
        shown = report.for_helper()
        keys = shown.keys(example.ticket)
        half = report.leader_half(CLIPPED, with_cosine=True)
        transcript = keys.transcript(report.claim, shown.rest)
        ours = answer(half, keys, report.claim, transcript, example.theta, CLIPPED, leader=True)
        columns = [int.from_bytes(rng.bytes(80), "little") % P for _ in range(shape.columns)]
        value = (
            sum((a + b) ** 2 for a, b in zip(ours.elements, columns, strict=False)) - ours.elements[shape.columns]
        ) % P
        zeros = [-element % P for element in ours.elements[shape.columns + 1 :]]
        simulated = Answers([*columns, value, *zeros], ours.residue)
        assert ours.agree_with(simulated, shape)


class SmallField:
    """The proof of one row of one number in the field of 7 elements, written out: small enough for every case."""

    p = 7

    def view(self, x: int, x1: int, r0: int, r1: int, proof1: tuple[int, int, int], at: int) -> tuple[int, ...]:
        """What the leader sees of a report: its halves, and the helper's answers."""
        p, r = self.p, r0 + r1
        line = [(r + t * (x - r)) % p for t in range(3)]  # through (0, r) and (1, x)
        proof = [v * v % p for v in line]
        share0 = [(v - w) % p for v, w in zip(proof, proof1, strict=True)]
        answer1 = (r1 + at * (x1 - r1)) % p
        inverse = pow(2, -1, p)
        weights = ((at - 1) * (at - 2) * inverse, -at * (at - 2), at * (at - 1) * inverse)
        value1 = sum(w * v for w, v in zip(weights, proof1, strict=True)) % p
        return ((x - x1) % p, r0, *share0, answer1, value1)


def test_the_view_of_a_server_does_not_depend_on_the_number_in_a_small_field() -> None:
    """Exhaustive: over everything that the helper draws, every number gives the same views equally often."""
    field, p = SmallField(), SmallField.p
    for at in (3, 5):
        seen = [
            Counter(field.view(x, x1, 4, r1, (a, b, c), at) for x1, r1, a, b, c in product(range(p), repeat=5))
            for x in (0, 1, 3)
        ]
        assert seen[0] == seen[1] == seen[2]


def test_nothing_secret_is_printed_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(1)
    head = draw_head(rng, CLIPPED)
    with caplog.at_level(logging.DEBUG), redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        example = start_round(CLIPPED, head)
        rows = draw_updates(rng, CLIPPED, head, 1)
        reports = [example.write(encode_update(row, example.theta, CLIPPED), i) for i, row in enumerate(rows)]
        opened = example.open(reports)
        half = reports[0].leader_half(CLIPPED, with_cosine=True)
        shown = repr([example.helper, reports, opened, half, half.numbers, Reports(1, ()), Checks(1, (), ())])
    text = caplog.text + out.getvalue() + err.getvalue() + shown
    secrets = [reports[0].rest[:32], reports[0].words, reports[0].sealed]
    for secret in secrets:
        assert secret.hex()[:16] not in text
        assert repr(secret)[2:20] not in text
    assert str(half.numbers.head[0]) not in text
    assert str(half.proof[0]) not in text
