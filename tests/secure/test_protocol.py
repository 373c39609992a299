"""The protocol against its twin in the clear: no decision and no bit of a sum may differ."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from secure_examples import (
    CLIPPED,
    SCALED,
    TERMS,
    THOROUGH,
    WITH_BUFFERS,
    Example,
    draw_head,
    draw_updates,
    encode_update,
    request,
    start_round,
    thorough,
)

from cosdefense.secure.encoding import Encoded, decode_mean, encode_public_head
from cosdefense.secure.exchange import Outcome
from cosdefense.secure.leader import Opened, open_round
from cosdefense.secure.proof import P
from cosdefense.secure.rounds import run_in_the_clear
from cosdefense.secure.rule import decide
from cosdefense.secure.statements import claim
from cosdefense.secure.terms import Terms
from shapes import unchecked


def check_round(example: Example, rows: np.ndarray, memory: float | None = None) -> Opened:
    """Play a round, and compare it with plain integers."""
    terms, theta = example.terms, example.theta
    encoded = [encode_update(row, theta, terms) for row in rows]
    opened = example.open([example.write(update, i) for i, update in enumerate(encoded)])
    assert opened.outcomes == (Outcome.VALID,) * len(rows)
    decision = decide([claim(update, theta, terms) for update in encoded], terms, memory, with_cosine=any(theta))
    assert repr(opened.decision) == repr(decision)  # NaN scores are equal here
    if decision.refused is not None:
        assert opened.words is None
        assert opened.head == ()
        return opened
    assert opened.words is not None
    assert list(opened.head) == plain_sum([update.head.tolist() for update in encoded], decision.weights)
    words = plain_sum([terms.ring.to_signed(update.words).tolist() for update in encoded], decision.weights)
    assert terms.ring.to_signed(opened.words).tolist() == words
    return opened


def plain_sum(rows: list[list[int]], weights: tuple[int, ...]) -> list[int]:
    return [sum(w * v for w, v in zip(weights, column, strict=True)) for column in zip(*rows, strict=True)]


def run_many(rounds: int, terms: Terms, seed: int) -> int:
    """How many rounds were opened."""
    rng, n_opened = np.random.default_rng(seed), 0
    keys = start_round(terms, np.ones(terms.head)).keys
    for number in range(rounds):
        head = draw_head(rng, terms)
        example = start_round(terms, head, keys)
        n_opened += check_round(example, draw_updates(rng, terms, head, number)).words is not None
    return n_opened


@pytest.mark.slow
def test_two_thousand_rounds_equal_the_twin() -> None:
    """All but some without sketches, which make a round ten times as long."""
    small = replace(TERMS, clients=4, head=4, weights=4, threshold="mean+std", deviations=0.5)
    with unchecked():  # checks of all calls take longer than the rounds; those below are enough for them
        opened = run_many(100_000 if THOROUGH else 750, small, 0)
    opened += run_many(1200, replace(small, clients=3, threshold="mad", deviations=3.0), 4)
    opened += run_many(2000 if THOROUGH else 20, CLIPPED, 1) + run_many(2000 if THOROUGH else 20, WITH_BUFFERS, 2)
    opened += run_many(1000 if THOROUGH else 10, SCALED, 3)
    assert opened > 800


def test_a_global_head_of_zeros_accepts_everybody() -> None:
    rng = np.random.default_rng(7)
    for terms in (TERMS, CLIPPED):
        opened = check_round(start_round(terms, np.zeros(terms.head)), draw_updates(rng, terms, np.zeros(terms.head)))
        assert opened.decision.weights == (1,) * 5


def test_the_mean_is_that_of_the_updates() -> None:
    rng = np.random.default_rng(8)
    head = draw_head(rng, WITH_BUFFERS)
    rows = 0.1 * rng.normal(size=(5, 18))
    example = start_round(replace(WITH_BUFFERS, threshold="mad", deviations=100.0), head)
    opened = check_round(example, rows)
    assert opened.words is not None
    mean = np.concatenate(decode_mean(opened.head, opened.words, opened.decision.n_accepted, example.terms))
    assert np.abs(mean - rows.mean(axis=0)).max() <= 2.0**-example.terms.buffer_fraction
    assert np.abs(mean - rows.mean(axis=0))[:14].max() <= 2.0**-example.terms.fraction


def test_the_twins_sums_of_heads_do_not_overflow() -> None:
    """300 heads at the limit of their format, each counted 256 times, need more than 64 bits."""
    terms = replace(SCALED, clients=300, clip=1024.0)
    row = np.concatenate([np.full(terms.head, 128.0), np.zeros(terms.weights)])
    theta = [1] * terms.head
    encoded = [encode_update(row, theta, terms)] * terms.clients
    sums = run_in_the_clear(encoded, None, None, theta, terms, None).sums  # type: ignore[arg-type]
    assert sums is not None
    assert list(sums[0]) == [300 * 256 * 2**47] * terms.head


def test_every_subset_of_clients_may_be_missing() -> None:
    rng = np.random.default_rng(9)
    head = draw_head(rng, TERMS)
    rows = draw_updates(rng, TERMS, head, 1)
    for subset in range(32):
        example = start_round(TERMS, head)
        present = [i for i in range(5) if subset >> i & 1]
        encoded = {i: encode_update(rows[i], example.theta, TERMS) for i in present}
        opened = example.open([example.write(encoded[i], i) for i in present])
        decision = decide([claim(encoded[i], example.theta, TERMS) for i in present], TERMS, None)
        assert repr(opened.decision) == repr(decision)
        if opened.words is not None:
            chosen = [encoded[i].head.tolist() for i in present]
            assert list(opened.head) == plain_sum(chosen, decision.weights)
        else:
            assert len(present) < 3 or decision.n_accepted == 0


def test_the_order_of_reports_does_not_matter() -> None:
    rng = np.random.default_rng(13)
    head = draw_head(rng, TERMS)
    rows = draw_updates(rng, TERMS, head, 1)
    sums = set()
    for _ in range(100 if THOROUGH else 8):
        example, order = start_round(TERMS, head), rng.permutation(5)
        opened = example.open([example.write(encode_update(rows[i], example.theta, TERMS), i) for i in order])
        assert opened.words is not None
        sums.add((tuple(opened.head), opened.words.tobytes()))
    assert len(sums) == 1


def test_a_long_norm_limited_run_keeps_both_memories_equal() -> None:
    """The running median of the helper is what the leader has."""
    rng, memory = np.random.default_rng(11), None
    head = draw_head(rng, SCALED)
    example = start_round(SCALED, head)
    for number in range(12):
        assert SCALED.norm_limit is not None
        if number:
            assert memory is not None
            terms = replace(SCALED, clip=memory, norm_limit=replace(SCALED.norm_limit, started=True))
            ticket = example.helper.issue_ticket(request(terms, head, rest=bytes([number] * 32)))
            example = replace(example, terms=terms, ticket=ticket)
        rows = rng.normal(size=(5, 14)) * rng.uniform(0.5, 2, size=(5, 1))
        encoded = [encode_update(row, example.theta, example.terms) for row in rows]
        reports = [example.write(update, i) for i, update in enumerate(encoded)]
        opened = open_round(reports, example.ticket, example.terms, example.theta, memory, example.helper)
        assert set(opened.outcomes) == {Outcome.VALID}
        memory = opened.decision.memory
        if memory is None:
            break


@thorough
def test_ten_thousand_honest_reports() -> None:
    rng, n = np.random.default_rng(12), 100
    for number in range(100):
        terms = replace((CLIPPED, WITH_BUFFERS)[number % 2], clients=n, smallest=22, quorum=22)
        head = draw_head(rng, terms)
        example = start_round(terms, head)
        rows = draw_updates(rng, terms, head, number) * 10 ** rng.uniform(0, 3)  # many are clipped
        encoded: list[Encoded] = [encode_update(row, encode_public_head(head), terms) for row in rows]
        opened = example.open([example.write(update, i) for i, update in enumerate(encoded)])
        assert opened.outcomes == (Outcome.VALID,) * n


@pytest.mark.slow
def test_three_parties_of_mpyc_decide_and_add_the_same(tmp_path: Path) -> None:
    """An independent library for multi-party computation, with three processes that share the updates."""
    pytest.importorskip("mpyc", reason="mpyc is not installed")
    rng, task, found = np.random.default_rng(14), [], []
    for number in range(1, 101 if THOROUGH else 6):
        head = draw_head(rng, CLIPPED)
        example = start_round(CLIPPED, head)
        rows = draw_updates(rng, CLIPPED, head, number)
        encoded = [encode_update(row, example.theta, CLIPPED) for row in rows]
        opened = example.open([example.write(update, i) for i, update in enumerate(encoded)])
        claims = [claim(update, example.theta, CLIPPED).cosine for update in encoded]
        found.append((claims, opened))
        heads = [[str(value) for value in update.head] for update in encoded]
        task.append({"theta": [str(value) for value in example.theta], "heads": heads})
    path = tmp_path / "task.json"
    path.write_text(json.dumps({"modulus": str(P), "rounds": task}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = min(free.getsockname()[1], 65_000)  # each party has the next one
    script = Path(__file__).with_name("mpyc_rounds.py")
    line = [sys.executable, "-W", "ignore", str(script), "-M3", f"-B{port}", "--no-log", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(path.with_suffix(".out").read_text())
    assert len(results) == len(found)
    for result, (claims, opened) in zip(results, found, strict=True):
        assert result["claims"] == claims
        if max(claims) - min(claims) > 16 and opened.words is not None:
            assert result["accepted"] == [weight > 0 for weight in opened.decision.weights]
            assert [int(value) for value in result["sums"]] == list(opened.head)
    assert sum(opened.words is not None for _, opened in found) > len(found) // 5
