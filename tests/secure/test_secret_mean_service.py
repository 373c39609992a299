"""Rounds with a running mean over the network: a helper behind mutual TLS that is killed at every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing_examples import COMPARED, everybody
from secure_examples import Example, encode_update
from test_comparing_service import STEPS, Killed
from test_service import Site, build_site

from cosdefense.secure.comparing_leader import Compared, LeaderMean, open_compared_round
from cosdefense.secure.exchange import TicketRequest
from cosdefense.secure.leader import HelperUnreachable
from cosdefense.secure.policy import Refused
from cosdefense.secure.projection import RING
from cosdefense.secure.remote_helper import RemoteHelper
from cosdefense.secure.ring import Words
from cosdefense.secure.secret_mean import Lesson, multiply_in_the_clear
from cosdefense.secure.triple_files import deal_files

TERMS = replace(COMPARED, mean=True)
FACTORS = (3, 1, 4, 1, 5)
NOTHING = np.zeros((0, TERMS.weights), np.uint64)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = build_site(tmp_path)
    deal_files(found.folder / "leader.triples", found.folder / "helper.triples", TERMS.rows, 10)
    settings = found.folder / "helper.toml"
    settings.write_text(settings.read_text() + 'triples = "helper.triples"\n')
    found.start()
    try:
        yield found
    finally:
        for helper in found.connections:
            helper.close()
        found.kill()


class Leader:
    """What a leader remembers, and what the mean must be."""

    def __init__(self, site: Site) -> None:
        self.site, self.helper = site, site.connect(triples=site.folder / "leader.triples")
        self.version, self.halves, self.n_rounds = 0, None, 0
        self.mean: np.ndarray | None = None

    halves: Words | None
    helper: RemoteHelper

    def play(self, link: Any = None) -> None:
        self.n_rounds += 1
        rows = np.random.default_rng(self.n_rounds).normal(size=(5, TERMS.words)) / 10
        model = self.n_rounds.to_bytes(32, "little")
        ticket = self.helper.issue_ticket(TicketRequest(TERMS, b"", model, mean=self.version))
        example, seen = Example(TERMS, [], self.site.keys, self.helper, ticket), list[Compared]()  # type: ignore[arg-type]
        encoded = [encode_update(row, [], TERMS) for row in rows]
        reports = [example.write(update, i) for i, update in enumerate(encoded)]
        plain = np.stack([RING.to_signed(update.words) for update in encoded])

        def decide(compared: Compared) -> tuple[int, ...]:
            seen.append(compared)
            return everybody(compared)

        lesson = Lesson(self.version == 0, 0, (FACTORS, FACTORS))
        mean, triples = LeaderMean(self.version, self.halves, lambda: lesson), self.helper.triples
        assert triples is not None
        opened = open_compared_round(reports, ticket, TERMS, NOTHING, decide, link or self.helper, triples, mean)
        assert opened.words is not None
        assert seen[0].mean == (None if self.mean is None else multiply_in_the_clear(self.mean, plain))
        self.version, self.halves = ticket.number, opened.mean
        self.mean = np.array(FACTORS) @ plain + (0 if self.mean is None else self.mean)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_a_killed_helper_keeps_its_half(site: Site, step: str, after: bool) -> None:
    """Two rounds, one in which it is killed, two more. The products are always those of plain integers."""
    leader = Leader(site)
    leader.play()
    leader.play()
    killed = Killed(site, leader.helper, step, after=after)
    if after and step == "settle_weights":
        leader.play(killed)  # the sum arrived
    else:
        with pytest.raises((Refused, HelperUnreachable), match=r"current|at most \d+ bytes are allowed"):
            leader.play(killed)
    leader.play()
    leader.play()
    files = sorted(path.name for path in site.folder.glob("*.mean.*"))
    assert len(files) == 2
    assert files[-1].endswith(f".mean.{leader.version}")


@pytest.mark.slow
def test_any_bytes_in_a_lesson_get_a_refusal(site: Site) -> None:
    leader, rng = Leader(site), np.random.default_rng(0)
    leader.play()
    leader.helper.issue_ticket(TicketRequest(TERMS, b"", bytes(32), mean=leader.version))
    for size in (8, 16, 56, 64, 100, 5000):
        assert leader.helper._client.post("/weights", content=rng.bytes(size)).status_code in (400, 409)
    leader.play()
