"""The whole view of a server, for two rounds of which the same is opened: nothing tells the two apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from secure_examples import CLIPPED, SCALED, THOROUGH, WITH_BUFFERS, start_round, thorough

from cosdefense.secure import report
from cosdefense.secure.encoding import encode, encode_public_head
from cosdefense.secure.exchange import Checks, Reports, Settled
from cosdefense.secure.helper import Helper
from cosdefense.secure.messages import elements
from cosdefense.secure.streams import digest
from cosdefense.secure.terms import Terms

LEVEL = 1e-6  # the chance that a test fails although nothing leaks
HEAD = np.array([1.0, -1.0])


@dataclass(frozen=True)
class Kind:
    """Terms, and three updates (head, words, buffers) whose cosines with HEAD are equal."""

    terms: Terms
    rounds: int  # with the updates in their order, and as many with the first two exchanged
    updates: tuple[list[float], ...]


# The first is long, the second is almost nothing; or as long, where norms are opened.
UPDATES = ([1.5, 0, 1.0, -0.7], [0, 2.0**-40, 0, 0], [0, -0.1, 0.2, 0.3])
EQUAL_NORMS = (UPDATES[0], [0, 2.0**-20, 0, float(np.linalg.norm(UPDATES[0]))], UPDATES[2])
BUFFERS = ([0.5, -0.25, 0.1, 1.0], [0.0] * 4, [0.0, 0.3, 0.0, -0.2])
CLIP = Kind(replace(CLIPPED, clients=3, head=2, weights=2), 1000 if THOROUGH else 40, UPDATES)
KINDS = {
    "clip": CLIP,
    "buffers": Kind(
        replace(WITH_BUFFERS, clients=3, head=2, weights=2),
        200,
        tuple(a + b for a, b in zip(UPDATES, BUFFERS, strict=True)),
    ),
    "norm limit": Kind(replace(SCALED, clients=3, head=2, weights=2), 200, EQUAL_NORMS),
}
Views = NDArray[np.uint8]  # a row of bytes for each round


class Recorder:
    """Passes everything on to the helper, and keeps what the two servers tell each other."""

    def __init__(self, helper: Helper) -> None:
        self.helper, self.issue_ticket = helper, helper.issue_ticket

    def check_reports(self, reports: Reports) -> Checks:
        self.shown, self.of_helper = reports, self.helper.check_reports(reports)
        assert self.helper._round is not None
        self.seeds = self.helper._round.seeds  # which the helper decrypted
        return self.of_helper

    def settle(self, leader: Checks) -> Settled:
        self.of_leader, self.settled = leader, self.helper.settle(leader)
        return self.settled


def play_rounds(
    kind: Kind, keys: list[Ed25519PrivateKey], swapped: bool
) -> Iterator[tuple[list[bytes], list[bytes], bytes]]:
    """What leader and helper see of each client in a round, and what the leader sees of the sum.

    In swapped rounds the first two clients have exchanged their updates. Claims, decision and sum are the same.
    """
    terms, theta, sums = kind.terms, encode_public_head(HEAD), set()
    rows = [np.array(kind.updates[i]) for i in ((1, 0, 2) if swapped else (0, 1, 2))]
    encoded = [encode(row[:2], row[2:4], row[4:], theta, terms) for row in rows]
    for _ in range(kind.rounds):
        example = start_round(terms, HEAD, keys)
        link = Recorder(example.helper)
        reports = [example.write(update, i) for i, update in enumerate(encoded)]
        opened = replace(example, helper=link).open(reports)  # type: ignore[arg-type]
        assert opened.words is not None
        sums.add((tuple(opened.head), opened.words.tobytes(), tuple(r.claim for r in reports)))
        ours, theirs = (
            [elements(found.elements) + found.residue for found in checks.answers if found is not None]
            for checks in (link.of_leader, link.of_helper)
        )
        leader = [r.to_bytes() + answers for r, answers in zip(reports, theirs, strict=True)]
        seeds = [seed for seed in link.seeds if seed is not None]
        helper = [
            r.to_bytes() + seed + answers for r, seed, answers in zip(link.shown.reports, seeds, ours, strict=True)
        ]
        yield leader, helper, link.settled.to_bytes(terms)
    assert len(sums) == 1


def views(kind: Kind) -> list[tuple[Views, Views]]:
    """The views of both kinds of rounds: of the leader, then of the helper."""
    found, keys = [], [Ed25519PrivateKey.generate() for _ in UPDATES]
    for swapped in (False, True):
        rounds = [
            (_to_row(leader, total), _to_row(helper, b"")) for leader, helper, total in play_rounds(kind, keys, swapped)
        ]
        found.append([np.stack(rows) for rows in zip(*rounds, strict=True)])
    return list(zip(*found, strict=True))


def _to_row(clients: list[bytes], rest: bytes) -> Views:
    """All bytes, and the differences between two clients' bytes: masks that repeat would cancel there."""
    first, second, third = (np.frombuffer(data, np.uint8) for data in clients)
    return np.concatenate([first, second, third, first - second, np.frombuffer(rest, np.uint8)])


def count_ones(rows: Views) -> NDArray[np.int64]:
    """How often each bit is set."""
    total = np.zeros(8 * rows.shape[1], np.int64)
    for row in rows:
        total += np.unpackbits(row)
    return total


def most_by_chance(n: int, level: float) -> int:
    """The number of heads that n fair coins exceed with at most this chance."""
    ways, most, allowed = 0, n, math.floor(Fraction(level) * 2**n)
    while most >= 0 and ways + math.comb(n, most) <= allowed:
        ways, most = ways + math.comb(n, most), most - 1
    return most


def differs_in_a_bit(a: Views, b: Views) -> bool:
    """Whether some bit is set more often in one kind. Ones of `a` plus zeros of `b`: fair coins if it is not."""
    coins, n = count_ones(a) + len(b) - count_ones(b), len(a) + len(b)
    most = most_by_chance(n, LEVEL / (2 * coins.size))
    return bool((coins > most).any() or (n - coins > most).any())


def can_be_learned(a: Views, b: Views) -> bool:
    """Whether a linear classifier of all bits, from one half of the rounds, is right about pairs of the other half."""
    half = len(a) // 2
    direction = (count_ones(a[:half]) - count_ones(b[:half])).astype(np.float32)
    scores = [[float(np.unpackbits(row) @ direction) for row in rows[half:]] for rows in (a, b)]
    right = sum(x > y for x, y in zip(scores[0], scores[1], strict=True))
    return right > most_by_chance(len(scores[0]), LEVEL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind == "clip" else [thorough]) for kind in KINDS])
def test_views_of_different_updates_cannot_be_told_apart(kind: str) -> None:
    for name, (a, b) in zip(("leader", "helper"), views(KINDS[kind]), strict=True):
        assert not differs_in_a_bit(a, b), name
        assert not can_be_learned(a, b), name


def test_the_comparison_finds_masks_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that always use the same two seeds: halves, and digests of halves, are those of the update."""
    monkeypatch.setattr(report, "derive_seed", lambda entropy, content, header, which: digest("fixed", which))
    without_clip = replace(CLIP, terms=replace(CLIP.terms, clip=None))
    for name, (a, b) in zip(("leader", "helper"), views(without_clip), strict=True):
        assert differs_in_a_bit(a, b), name
        assert can_be_learned(a, b), name
