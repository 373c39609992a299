"""The helper's service without a network: bodies that are too large, a broken roster, a full disk."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_examples import TERMS as USUAL
from secure_examples import Example, draw_head, draw_updates, encode_update, request

from cosdefense.secure.exchange import Checks, Outcome, Reports, Settled
from cosdefense.secure.halves import Answers
from cosdefense.secure.helper_config import HelperConfig
from cosdefense.secure.helper_state import HelperState
from cosdefense.secure.keys import make_signing_key
from cosdefense.secure.policy import Policy
from cosdefense.secure.proof import P
from cosdefense.secure.service import MAX_REPORTS, MAX_REQUEST, HelperService
from cosdefense.secure.terms import MAX_CLIENTS
from cosdefense.secure.ticket import Ticket

TERMS = replace(USUAL, threshold="mad", deviations=100.0)  # accepts everybody
HEAD = draw_head(np.random.default_rng(0), TERMS)
REQUEST = request(TERMS, HEAD)


class Site:
    """A helper's folder and its service."""

    def __init__(self, folder: Path) -> None:
        self.keys = [Ed25519PrivateKey.generate() for _ in range(5)]
        lines = [f'node{i} = "{key.public_key().public_bytes_raw().hex()}"\n' for i, key in enumerate(self.keys)]
        self.roster, self.state = folder / "nodes.toml", folder / "state" / "helper.state"
        self.roster.write_text("".join(lines))
        self.state.parent.mkdir()
        make_signing_key(folder / "identity.pem")
        certificates = folder / "helper.crt", folder / "leader.crt"
        config = HelperConfig(
            "localhost", 1, *certificates, folder / "identity.pem", self.roster, self.state, Policy()
        )  # fmt: skip
        self.app = HelperService(config).app()

    def post(self, path: str, body: bytes, status: int = 200) -> bytes:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://helper") as client:
                return await client.post(path, content=body)

        answer = asyncio.run(send())
        assert answer.status_code == status, answer.text
        return answer.content


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def begin(site: Site) -> tuple[Reports, Checks]:
    """A ticket, and what the leader sends in the next two steps."""
    ticket = Ticket.from_bytes(site.post("/ticket", REQUEST.to_bytes()))
    example = Example(TERMS, REQUEST.theta, site.keys, None, ticket)  # type: ignore[arg-type]
    rows = draw_updates(np.random.default_rng(1), TERMS, HEAD, 1)
    reports = [example.write(encode_update(row, REQUEST.theta, TERMS), i) for i, row in enumerate(rows)]
    found = []

    class Recorder:
        """The leader's own answers, as they would be sent."""

        def check_reports(self, reports: Reports) -> Checks:
            return Checks.from_bytes(site.post("/reports", reports.to_bytes()), REQUEST.shape)

        def settle(self, leader: Checks) -> None:
            found.append(leader)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        replace(example, helper=Recorder()).open(reports)  # type: ignore[arg-type]
    return Reports(ticket.number, tuple(report.for_helper() for report in reports)), found[0]


def test_bodies_are_limited(site: Site) -> None:
    for path, most in (("/ticket", MAX_REQUEST), ("/reports", MAX_REPORTS), ("/settle", 16)):
        assert b"bytes are allowed" in site.post(path, bytes(most + 1), 413)
        site.post(path, bytes(most), 409 if path == "/settle" else 400)
    _, checks = begin(site)
    site.post("/settle", bytes(len(checks.to_bytes()) + 1), 413)
    assert site.post("/settle", checks.to_bytes())


def test_the_largest_messages_that_are_allowed_fit(site: Site) -> None:
    reports, checks = begin(site)
    many = Reports(1, tuple(reports.reports[:1]) * MAX_CLIENTS)
    assert len(many.to_bytes()) == MAX_REPORTS
    largest = Answers([P - 1] * REQUEST.shape.answers, bytes(32))
    full = Checks(1, (Outcome.VALID,) * TERMS.clients, (largest,) * TERMS.clients)
    assert len(full.to_bytes()) == 16 + TERMS.clients * Checks.count_bytes(REQUEST.shape) == len(checks.to_bytes())


def test_settlements_at_the_same_time_give_one_sum(site: Site) -> None:
    """A leader that asks for two different sets at once gets one of them."""
    _, checks = begin(site)
    sets = [
        Checks(checks.number, (*checks.outcomes[:i], Outcome.MISSING, *checks.outcomes[i + 1 :]),
               (*checks.answers[:i], None, *checks.answers[i + 1 :]))
        for i in range(5)
    ]  # fmt: skip

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(site.app), base_url="http://helper") as client:
            return await asyncio.gather(*(client.post("/settle", content=each.to_bytes()) for each in sets))

    answers = asyncio.run(ask())
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    (given,) = (Settled.from_bytes(answer.content, TERMS) for answer in answers if answer.status_code == 200)
    assert given.words is not None
    assert sum(weight > 0 for weight in given.weights) == 4


def test_a_reason_is_short(site: Site) -> None:
    names = ",".join(f'"field {i}":0' for i in range(2000)).encode()
    body = b'{"version":1,' + names + b"}"
    assert len(site.post("/ticket", len(body).to_bytes(8, "little") + body, 400)) <= 500


def test_a_broken_roster_is_refused_and_read_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    good = site.roster.read_text()
    for bad in ("[", 'node = "zz"', None):
        site.roster.unlink(missing_ok=True)
        if bad is not None:
            site.roster.write_text(bad)
        with caplog.at_level(logging.ERROR):
            assert site.post("/ticket", REQUEST.to_bytes(), 409) == b"the helper's roster cannot be read"
        assert str(site.roster) in caplog.text  # its operator is told more
    site.roster.write_text(good)
    assert Ticket.from_bytes(site.post("/ticket", REQUEST.to_bytes())).number == 1


def test_a_round_survives_a_broken_roster(site: Site) -> None:
    _, checks = begin(site)
    site.roster.write_text("[")
    site.post("/ticket", REQUEST.to_bytes(), 409)
    assert site.post("/settle", checks.to_bytes())


def test_no_ticket_and_no_sum_leaves_that_is_not_on_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    _, checks = begin(site)

    def fail(state: HelperState, path: Path | None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = HelperState.load(site.state)
    with monkeypatch.context() as full:
        full.setattr(HelperState, "save", fail)
        for path, body in (("/settle", checks.to_bytes()), ("/ticket", REQUEST.to_bytes())):
            assert site.post(path, body, 409) == b"the helper's state cannot be written: No space left on device"
    assert HelperState.load(site.state) == before
    assert site.post("/settle", checks.to_bytes())  # the disk has room again, and the round is still the current one
    assert HelperState.load(site.state).settled == before.issued
