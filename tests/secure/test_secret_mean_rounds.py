"""Rounds with a running mean between leader and helper: restarts, repeated rounds, lost halves, and what is refused."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing_examples import COMPARED, everybody
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_examples import Example, encode_update
from test_privacy import LIMIT, SAMPLES, chi_square

from cosdefense.secure.comparing_helper import ComparingHelper
from cosdefense.secure.comparing_leader import Compared, ComparedSum, LeaderMean, open_compared_round
from cosdefense.secure.comparison import VOTE, Masked, Projected, Weights
from cosdefense.secure.exchange import Outcome, TicketRequest
from cosdefense.secure.leader import ServersDisagree
from cosdefense.secure.policy import Policy, Refused
from cosdefense.secure.projection import RING
from cosdefense.secure.ring import Words
from cosdefense.secure.secret_mean import Lesson, multiply_in_the_clear
from cosdefense.secure.terms import MEAN_ROWS, RefusedTerms, Terms
from cosdefense.secure.triples import deal_stocks

TERMS = replace(COMPARED, mean=True)
START = Lesson(True, 0, ((3, 1, 4, 1, 5), (1, 0, 1, 0, 1)))
LATER = Lesson(False, 0, ((9, 2, 6, 5, 3), (1, 1, 0, 1, 0)))
SHIFT = Lesson(False, 1, ((2, 7, 1, 8, 2), (0, 1, 0, 0, 0)))
NOTHING = np.zeros((0, TERMS.weights), np.uint64)


@dataclass
class Servers:
    """A leader's memory and a helper that can be restarted."""

    folder: Path | None = None
    terms: Terms = TERMS
    version: int = 0
    halves: Words | None = None
    count: int = 12  # triples
    sent: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = [Ed25519PrivateKey.generate() for _ in range(5)]
        self.identity, self.n_rounds = Ed25519PrivateKey.generate(), 0
        self.triples = deal_stocks(self.terms.rows, self.count)
        self.restart()

    def restart(self) -> None:
        nodes = tuple(key.public_key().public_bytes_raw() for key in self.keys)
        path = None if self.folder is None else self.folder / "helper.state"
        policy = Policy(comparisons=True)
        self.helper = ComparingHelper(self.identity, nodes, policy, path, triples=self.triples[1])

    def __getattr__(self, name: str) -> Any:
        """As a link to the helper that remembers the messages."""

        def call(message: Any) -> Any:
            self.sent[name] = message
            self.sent[f"{name} answer"] = getattr(self.helper, name)(message)
            return self.sent[f"{name} answer"]

        return call

    def play(
        self, rows: np.ndarray, lesson: Lesson | None, weights: tuple[int, ...] | None = None, keep: bool = True
    ) -> tuple[Compared, ComparedSum]:
        """A round. `keep`: whether the leader remembers what it learned."""
        self.n_rounds += 1
        model = self.n_rounds.to_bytes(32, "little")
        ticket = self.helper.issue_ticket(TicketRequest(self.terms, b"", model, mean=self.version))
        example, seen = Example(self.terms, [], self.keys, self.helper, ticket), list[Compared]()
        reports = [example.write(encode_update(row, [], self.terms), i) for i, row in enumerate(rows)]

        def decide(compared: Compared) -> tuple[int, ...]:
            seen.append(compared)
            return weights or everybody(compared)

        mean = LeaderMean(self.version, self.halves, lambda: lesson)
        opened = open_compared_round(reports, ticket, self.terms, NOTHING, decide, self, self.triples[0], mean)
        if opened.mean is not None and keep:
            self.version, self.halves = ticket.number, opened.mean
        return seen[0], opened


def draw_rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(5, TERMS.words))


def plain(rows: np.ndarray) -> np.ndarray:
    return np.stack([RING.to_signed(encode_update(row, [], TERMS).words) for row in rows])


def check(compared: Compared, mean: np.ndarray | None, rows: np.ndarray) -> None:
    """The opened products are those of plain integers."""
    if mean is None:
        assert compared.mean is None
    else:
        assert compared.mean == multiply_in_the_clear(mean, plain(rows))
        assert compared.mean is not None
        assert compared.mean.clients[0] == sum(map(int.__mul__, mean.tolist(), plain(rows)[0].tolist()))
    assert compared.clients.shape == (5, 5)


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_mean_is_compared_and_learned(tmp_path: Path, on_disk: bool) -> None:
    """A helper on disk is restarted before every round."""
    servers, rows = Servers(tmp_path if on_disk else None), [draw_rows(i) for i in range(4)]
    first, second = (np.array(factors) @ plain(rows[0]) for factors in START.factors)
    check(servers.play(rows[0], START)[0], None, rows[0])
    for number, lesson in ((1, LATER), (2, SHIFT), (3, None)):
        if on_disk:
            servers.restart()
        compared, opened = servers.play(rows[number], lesson)
        check(compared, first, rows[number])
        assert (opened.mean is None) == (lesson is None)
        if lesson is not None:
            if lesson.shifts:
                first, second = second, np.zeros_like(second)
            first = first + np.array(lesson.factors[0]) @ plain(rows[number])
            second = second + np.array(lesson.factors[1]) @ plain(rows[number])
    assert servers.version == 3
    if on_disk:
        names = sorted(path.name for path in tmp_path.glob("*.mean.*"))
        assert names == ["helper.state.mean.2", "helper.state.mean.3"]


def test_skipped_rounds_leave_the_mean_as_it_was(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.play(draw_rows(0), START)
    mean = np.array(START.factors[0]) @ plain(draw_rows(0))
    _, opened = servers.play(draw_rows(1), LATER, weights=(VOTE, VOTE, 0, 0, 0))
    assert opened.refused is not None
    assert opened.mean is None
    check(servers.play(draw_rows(2), None)[0], mean, draw_rows(2))


@pytest.mark.parametrize("after", [False, True])
def test_a_leader_that_lost_the_answer_repeats_the_round(tmp_path: Path, after: bool) -> None:
    """The helper learned, the leader did not. `after`: so it was twice."""
    servers = Servers(tmp_path)
    servers.play(draw_rows(0), START)
    mean = np.array(START.factors[0]) @ plain(draw_rows(0))
    for _ in range(1 + after):
        servers.play(draw_rows(1), LATER, keep=False)
        servers.restart()
    check(servers.play(draw_rows(1), LATER)[0], mean, draw_rows(1))
    mean = mean + np.array(LATER.factors[0]) @ plain(draw_rows(1))
    check(servers.play(draw_rows(2), None)[0], mean, draw_rows(2))


def test_a_helper_killed_while_it_learns_leaves_the_mean_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half is on disk, the settlement is not: the sum was not given, and nobody asks for this half."""
    servers = Servers(tmp_path)
    servers.play(draw_rows(0), START)
    mean = np.array(START.factors[0]) @ plain(draw_rows(0))

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ComparingHelper, "_save_settlement", die)
        with pytest.raises(KeyboardInterrupt):
            servers.play(draw_rows(1), LATER)
    assert (tmp_path / "helper.state.mean.2").exists()
    servers.restart()
    check(servers.play(draw_rows(2), LATER)[0], mean, draw_rows(2))
    assert not (tmp_path / "helper.state.mean.2").exists()


@pytest.mark.parametrize("kind", ["helper's is deleted", "helper's is damaged", "leader's is lost", "leader's is old"])
def test_a_lost_half_starts_the_mean_again(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers(tmp_path)
    for number in range(3):
        if number == 1:
            old = servers.version, servers.halves
        servers.play(draw_rows(number), LATER if number else START)
    file = tmp_path / "helper.state.mean.3"
    with caplog.at_level(logging.WARNING):
        if kind == "helper's is deleted":
            file.unlink()
        elif kind == "helper's is damaged":
            file.write_bytes(file.read_bytes()[:-1] + b"\0")
        elif kind == "leader's is lost":
            servers.version, servers.halves = 0, None
        else:
            servers.version, servers.halves = old
        compared, opened = servers.play(draw_rows(3), START)
    check(compared, None, draw_rows(3))
    assert opened.words is not None
    assert (kind == "leader's is lost") or "the mean starts again" in caplog.text
    check(servers.play(draw_rows(4), None)[0], np.array(START.factors[0]) @ plain(draw_rows(3)), draw_rows(4))


def test_one_ticket_has_one_lesson() -> None:
    servers = Servers()
    servers.play(draw_rows(0), START)
    asked = servers.sent["settle_weights"]
    assert servers.helper.settle_weights(asked) is servers.sent["settle_weights answer"]
    for lesson in (None, LATER, replace(START, shifts=1)):
        with pytest.raises(Refused, match="is settled"):
            servers.helper.settle_weights(replace(asked, lesson=lesson))


@pytest.mark.parametrize(
    ("lesson", "problem"),
    [
        (Lesson(True, 0, ((1,) * 4, (1,) * 4)), "learns valid reports"),
        (Lesson(True, 0, ((1,) * 6, (1,) * 6)), "learns valid reports"),
        (LATER, "it must start again"),
    ],
)
def test_lessons_that_do_not_fit_are_refused(lesson: Lesson, problem: str) -> None:
    servers = Servers()
    with pytest.raises(InterruptedError):
        servers.play(draw_rows(0), None, weights=_Stop())
    with pytest.raises(Refused, match=problem):
        servers.helper.settle_weights(Weights(1, (VOTE,) * 5, lesson))
    assert servers.helper.settle_weights(Weights(1, (VOTE,) * 5, START)).words is not None


class _Stop(tuple):  # type: ignore[type-arg]
    def __bool__(self) -> bool:
        raise InterruptedError


def test_reports_that_are_refused_teach_nothing() -> None:
    servers = Servers()
    ticket = servers.helper.issue_ticket(TicketRequest(TERMS, b"", bytes(32)))
    example = Example(TERMS, [], servers.keys, servers.helper, ticket)
    reports = [example.write(encode_update(row, [], TERMS), i) for i, row in enumerate(draw_rows(0))]
    reports[1] = replace(reports[1], signature=bytes(64))
    lesson = Lesson(True, 0, ((1, 2, 3, 4), (1, 1, 1, 1)))
    mean = LeaderMean(0, None, lambda: lesson)
    opened = open_compared_round(
        reports, ticket, TERMS, NOTHING, everybody, servers, servers.triples[0], mean
    )  # fmt: skip
    assert opened.outcomes[1] == Outcome.UNSIGNED
    assert servers.sent["settle_weights"].lesson.factors[0] == (1, 0, 2, 3, 4)
    theirs = servers.helper._means.find(1, TERMS.weights)
    assert opened.mean is not None
    assert theirs is not None
    expected = np.array([1, 2, 3, 4]) @ plain(draw_rows(0)[[0, 2, 3, 4]])
    assert np.array_equal(RING.to_signed(opened.mean[0] + theirs[0]), expected)
    wrong = replace(lesson, factors=((1, 1, 2, 3, 4), (1, 0, 1, 1, 1)))
    with pytest.raises(Refused):
        servers.helper._learn(1, wrong, servers.sent["project answer"])


def test_terms_without_a_mean_learn_nothing() -> None:
    servers = Servers(terms=COMPARED)
    with pytest.raises(Refused, match="if the terms say that there is one"):
        servers.play(draw_rows(0), START)
    with pytest.raises(RefusedTerms, match="no running mean where updates are not compared"):
        replace(COMPARED, references=None, head=2, weights=12, mean=True)
    assert '"mean":' not in COMPARED.to_json()
    assert Terms.from_json(TERMS.to_json()) == TERMS
    with pytest.raises(RefusedTerms):
        Terms.from_json(TERMS.to_json().replace('"mean":true', '"mean":1'))
    with pytest.raises(RefusedTerms, match="canonical"):
        Terms.from_json(COMPARED.to_json().replace('"norm_limit"', '"mean":false,"norm_limit"'))


def test_servers_with_means_of_different_rounds_disagree() -> None:
    servers = Servers()
    servers.play(draw_rows(0), START)
    projected: list[Projected] = []
    original = ComparingHelper.project

    def lie(self: ComparingHelper, leader: Any) -> Projected:
        projected.append(replace(original(self, leader), mean=7))
        return projected[-1]

    servers.helper.project = lie.__get__(servers.helper)  # type: ignore[method-assign]
    with pytest.raises(ServersDisagree, match="different rounds"):
        servers.play(draw_rows(1), LATER)
    servers.version, servers.halves = 0, None
    with pytest.raises(ServersDisagree, match="does not have"):
        servers.play(draw_rows(1), START)


@pytest.mark.slow
def test_every_byte_of_a_half_is_uniform() -> None:
    """Of zeros and of long updates: the halves of the mean, and what the servers exchange about it."""
    for scale in (0.0, 1.0):
        views = dict[str, list[int]]()
        for _ in range(SAMPLES):
            servers, rows = Servers(count=2), np.full((5, TERMS.words), scale)
            servers.play(rows, START)
            ours, theirs = servers.halves, servers.helper._means.find(1, TERMS.weights)
            assert ours is not None
            assert theirs is not None
            found = {"leader's half": ours[0, 3], "helper's half": theirs[0, 3]}
            found |= {"leader's second half": ours[1, 3], "helper's second half": theirs[1, 3]}
            servers.play(rows, None)
            masked: Masked = servers.sent["multiply"]
            projected: Projected = servers.sent["project answer"]
            assert len(masked.masked) == len(projected.masked) == 5 + MEAN_ROWS
            for row in (5, 6, 8):
                found |= {f"to the helper, row {row}": masked.masked[row, 3]}
                found |= {f"to the leader, row {row}": projected.masked[row, 3]}
            for name, word in found.items():
                data = int(word).to_bytes(8, "little")
                views.setdefault(f"{name}, low", []).append(data[0])
                views.setdefault(f"{name}, high", []).append(data[7])
        assert len(views) == 20
        for name, values in views.items():
            assert chi_square(values) < LIMIT, name


def test_the_halves_of_the_mean_do_not_depend_on_the_updates_modulo_four() -> None:
    """All masks of two updates: whatever they are, each server's half has the same distribution."""
    factors = (3, 2)
    for leader in (True, False):
        seen = []
        for updates in ((0, 0), (1, 2), (3, 3)):
            masks = [(a, b) for a in range(4) for b in range(4)]
            halves = [
                sum(f * ((x - m) if leader else m) for f, x, m in zip(factors, updates, pair, strict=True)) % 4
                for pair in masks
            ]
            seen.append(np.bincount(halves, minlength=4).tolist())
        assert seen == [[4, 4, 4, 4]] * 3
