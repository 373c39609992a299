"""Comparing rounds over the network: a helper in its own process behind mutual TLS, with a dealer's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from comparing_examples import COMPARED, ComparingExample, everybody
from secure_examples import Example, encode_update
from test_service import Site, build_site

from cosdefense.secure.comparing_leader import Compared, ComparedSum
from cosdefense.secure.exchange import Outcome, TicketRequest
from cosdefense.secure.helper_config import BadSettings, HelperConfig
from cosdefense.secure.leader import HelperUnreachable
from cosdefense.secure.policy import Refused
from cosdefense.secure.remote_helper import RemoteHelper
from cosdefense.secure.triple_files import deal_files

TERMS = replace(COMPARED, references=1)
ROWS = np.random.default_rng(13).normal(size=(5, 14)) / 10
VECTOR = np.zeros((1, 14), np.uint64)
VECTOR[0, 3] = 2**28
STEPS = ("project", "multiply", "settle_weights")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = build_site(tmp_path_factory.mktemp("comparing"))
    deal_files(found.folder / "leader.triples", found.folder / "helper.triples", 5, 20)
    settings = found.folder / "helper.toml"
    settings.write_text(settings.read_text() + 'triples = "helper.triples"\n')
    found.start()
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture
def helper(site: Site) -> Iterator[RemoteHelper]:
    found = site.connect(triples=site.folder / "leader.triples")
    yield found
    found.close()


def begin(site: Site, helper: RemoteHelper, model: int) -> ComparingExample:
    ticket = helper.issue_ticket(TicketRequest(TERMS, b"", bytes([model] * 32)))
    assert helper.triples is not None
    return ComparingExample(TERMS, helper, helper.triples, Example(TERMS, [], site.keys, helper, ticket))  # type: ignore[arg-type]


def play(example: ComparingExample, link: Any = None) -> tuple[list[Compared], ComparedSum]:
    """What the leader saw before it decided, and what was opened."""
    seen = list[Compared]()

    def decide(compared: Compared) -> tuple[int, ...]:
        seen.append(compared)
        return everybody(compared)

    return seen, example.open(example.write_all(ROWS), decide, VECTOR, link)


@pytest.mark.slow
def test_rounds_over_the_network_give_the_same_products_and_sums(site: Site, helper: RemoteHelper) -> None:
    plain = [TERMS.ring.to_signed(encode_update(row, [], TERMS).words).tolist() for row in ROWS]
    for model in (1, 2):
        seen, opened = play(begin(site, helper, model))
        assert set(opened.outcomes) == {Outcome.VALID}
        assert seen[0].clients.tolist() == [[sum(map(int.__mul__, a, b)) for b in plain] for a in plain]
        assert seen[0].references.tolist() == [[2**28 * row[3]] for row in plain]
        assert opened.words is not None
        total = TERMS.ring.to_signed(opened.words).tolist()
        assert total == [65536 * sum(column) for column in zip(*plain, strict=True)]


class Killed:
    """A link whose helper is killed before or after one of its steps, and started again."""

    def __init__(self, site: Site, helper: RemoteHelper, step: str, *, after: bool) -> None:
        self.site, self.helper, self.step, self.after = site, helper, step, after

    def __getattr__(self, name: str) -> Any:
        step = getattr(self.helper, name)
        if name != self.step:
            return step

        def call(message: Any) -> Any:
            answer = step(message) if self.after else None
            self.site.kill()
            self.site.start()
            return step(message) if answer is None else answer

        return call


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_a_killed_helper_costs_the_round_and_uses_no_triple_twice(
    site: Site, helper: RemoteHelper, step: str, after: bool
) -> None:
    model = 10 + 4 * STEPS.index(step) + 2 * after
    example = begin(site, helper, model)
    if after and step == "settle_weights":
        play(example, Killed(site, helper, step, after=after))  # the sum arrived
    else:
        with pytest.raises((Refused, HelperUnreachable), match=r"current|at most \d+ bytes are allowed"):
            play(example, Killed(site, helper, step, after=after))
    before = _positions(site)
    _, opened = play(begin(site, helper, model + 1))
    assert opened.words is not None
    assert _positions(site) == [max(before) + 1] * 2


def _positions(site: Site) -> list[int]:
    """The first triple that was not used, of both servers."""
    return [int((site.folder / f"{role}.triples.used").read_text().split()[1]) for role in ("leader", "helper")]


@pytest.mark.slow
def test_any_bytes_get_a_refusal(site: Site, helper: RemoteHelper) -> None:
    rng = np.random.default_rng(0)
    begin(site, helper, 40)
    for path in ("/project", "/multiply", "/weights"):
        for size in (0, 1, 8, 100, 5000):
            response: httpx.Response = helper._client.post(path, content=rng.bytes(size))
            assert response.status_code in (400, 409), (path, size)
    _, opened = play(begin(site, helper, 41))
    assert opened.words is not None


def test_settings_name_the_triples(tmp_path: Path) -> None:
    found = build_site(tmp_path)
    text = (tmp_path / "helper.toml").read_text()
    assert not found.config.policy.comparisons
    for line, needed in (("triples = 3", "triples must be a text"), ("comparisons = true", "'comparisons' is unknown")):
        (tmp_path / "helper.toml").write_text(f"{text}{line}\n")
        with pytest.raises(BadSettings, match=needed):
            HelperConfig.load(tmp_path / "helper.toml")
    (tmp_path / "helper.toml").write_text(f'{text}triples = "helper.triples"\n')
    assert found.config.policy.comparisons
    assert found.config.triples == tmp_path / "helper.triples"
