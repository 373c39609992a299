"""No forged report counts; the honest reports beside it do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from forgeries import forgeries, write_forged
from secure_examples import SCALED, TERMS, THOROUGH, WITH_BUFFERS, draw_head, encode_update, start_round

from cosdefense.secure.exchange import Outcome
from cosdefense.secure.terms import Terms

TIMES = 1000 if THOROUGH else 1
KINDS = forgeries()
ALL = replace(WITH_BUFFERS, clients=4 + len(KINDS))


def test_there_are_enough_kinds() -> None:
    assert len(KINDS) >= 19


def play(terms: Terms, names: list[str], seed: int) -> dict[str, Outcome]:
    """Four honest clients and one for each kind of forgery, in one round."""
    rng = np.random.default_rng(seed)
    head = draw_head(rng, terms)
    example = start_round(replace(terms, clients=4 + len(names)), head)
    rows = 0.1 * rng.normal(size=(4 + len(names), head.size + terms.weights + terms.buffers))
    reports = [example.write(encode_update(row, example.theta, example.terms), i) for i, row in enumerate(rows[:4])]
    reports += [KINDS[name](example, i, rows[i], rng) for i, name in enumerate(names, start=4)]
    opened = example.open(reports)
    assert opened.outcomes[:4] == (Outcome.VALID,) * 4
    assert len(opened.decision.weights) == 4 + sum(outcome == Outcome.VALID for outcome in opened.outcomes[4:])
    return dict(zip(names, opened.outcomes[4:], strict=True))


@pytest.mark.slow
def test_no_forgery_is_accepted() -> None:
    names = [name for name in KINDS if name != "length claimed too short"]
    accepted = []
    for seed in range(TIMES):
        accepted += [name for name, outcome in play(WITH_BUFFERS, names, seed).items() if outcome == Outcome.VALID]
    assert accepted == []


def test_no_forgery_of_opened_lengths_is_accepted() -> None:
    names = ["length claimed too short", "claim one unit too high", "a pair of words that wraps", "claim of zero"]
    for seed in range(TIMES):
        assert Outcome.VALID not in play(SCALED, names, seed).values()


def test_without_clip_a_head_is_bounded() -> None:
    names = ["head of 120 bits", "claim one unit too high", "any proof"]
    for seed in range(TIMES):
        assert Outcome.VALID not in play(TERMS, names, seed).values()


def test_what_forgeries_are_made_with_writes_valid_reports() -> None:
    """Otherwise every forgery would be refused for the wrong reason."""
    rng = np.random.default_rng(0)
    for terms in (TERMS, WITH_BUFFERS, SCALED):
        head = draw_head(rng, terms)
        example = start_round(terms, head)
        rows = 0.1 * rng.normal(size=(5, head.size + terms.weights + terms.buffers))
        reports = [write_forged(example, i, encode_update(row, example.theta, terms)) for i, row in enumerate(rows)]
        assert set(example.open(reports).outcomes) == {Outcome.VALID}


def test_reasons() -> None:
    found = play(WITH_BUFFERS, list(KINDS)[:-1], 3)
    reasons = {
        "claim one unit too high": Outcome.UNPROVEN,
        "claim beyond one": Outcome.MALFORMED,
        "ten times too long, sketch of zeros": Outcome.UNPROVEN,
        "another seed": Outcome.UNSEALED,
        "another claim than signed": Outcome.UNSIGNED,
        "another ticket": Outcome.UNSIGNED,
        "a node that was not asked": Outcome.UNKNOWN_NODE,
        "truncated words": Outcome.MALFORMED,
        "changed words, signed again": Outcome.UNPROVEN,
        "buffers too long": Outcome.UNPROVEN,
    }
    assert {name: found[name] for name in reasons} == reasons


def test_a_second_report_of_a_node_does_not_count() -> None:
    rng = np.random.default_rng(1)
    head = draw_head(rng, WITH_BUFFERS)
    example = start_round(WITH_BUFFERS, head)
    rows = 0.1 * rng.normal(size=(5, 18))
    order = [0, 1, 2, 3, 3]
    reports = [example.write(encode_update(rows[j], example.theta, WITH_BUFFERS), i) for j, i in enumerate(order)]
    assert example.open(reports).outcomes == (*(Outcome.VALID,) * 4, Outcome.REPEATED_NODE)
