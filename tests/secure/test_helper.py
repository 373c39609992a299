"""The helper's promises: one sum for each ticket, none of too few clients, nothing for what it did not agree to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_examples import SCALED, TERMS, Example, draw_head, draw_updates, encode_update, request, start_round

from cosdefense.secure.exchange import Checks, Outcome, Reports, Settled
from cosdefense.secure.halves import answer
from cosdefense.secure.helper import Helper
from cosdefense.secure.helper_state import BrokenState, HelperState
from cosdefense.secure.leader import ServersDisagree, open_round
from cosdefense.secure.policy import Policy, Refused
from cosdefense.secure.report import Report
from cosdefense.secure.statements import Claim
from cosdefense.secure.terms import Terms
from cosdefense.secure.ticket import RefusedTicket, Ticket

LIMIT = SCALED.norm_limit
assert LIMIT is not None
STARTED = replace(SCALED, norm_limit=replace(LIMIT, started=True))


@pytest.fixture
def head() -> np.ndarray:
    return draw_head(np.random.default_rng(0), TERMS)


def write_all(example: Example, seed: int = 2) -> list[Report]:
    rng = np.random.default_rng(seed)
    rows = draw_updates(rng, example.terms, np.ones(example.terms.head), 1)
    return [example.write(encode_update(row, example.theta, example.terms), i) for i, row in enumerate(rows)]


def leader_checks(example: Example, reports: list[Report]) -> Checks:
    answers = []
    for report in reports:
        half, shown = report.leader_half(example.terms, with_cosine=True), report.for_helper()
        keys = shown.keys(example.ticket)
        transcript = keys.transcript(report.claim, shown.rest)
        answers.append(answer(half, keys, report.claim, transcript, example.theta, example.terms, leader=True))
    return Checks(example.ticket.number, (Outcome.VALID,) * len(reports), tuple(answers))


def sealed(example: Example, reports: list[Report]) -> Reports:
    return Reports(example.ticket.number, tuple(report.for_helper() for report in reports))


def test_one_settlement_for_each_ticket(head: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "helper.state"
    example = start_round(TERMS, head, state_path=path)
    reports = write_all(example)
    shown, checks = sealed(example, reports), leader_checks(example, reports)
    first = example.helper.check_reports(shown)
    assert example.helper.check_reports(shown) is first  # the same reports again
    with pytest.raises(Refused, match="has its reports"):
        example.helper.check_reports(Reports(shown.number, shown.reports[:-1]))
    settled = example.helper.settle(checks)
    assert settled.words is not None
    assert example.helper.settle(checks).to_bytes(TERMS) == settled.to_bytes(TERMS)
    assert example.helper.check_reports(shown) is first
    current = example.helper._round
    assert current is not None
    assert (current.key, current.seeds) == (None, ())  # nothing is left to read updates with
    fewer = replace(checks, answers=(*checks.answers[:-1], None), outcomes=(*checks.outcomes[:-1], Outcome.MISSING))
    with pytest.raises(Refused, match="is settled"):
        example.helper.settle(fewer)
    with pytest.raises(Refused, match="not the current one"):
        example.helper.settle(replace(checks, number=99))
    # After a restart the round is gone, and numbers go on.
    again = Helper(Ed25519PrivateKey.generate(), example.helper.roster, state_path=path)
    for ask in (lambda: again.settle(checks), lambda: again.check_reports(shown)):
        with pytest.raises(Refused, match="not the current one"):
            ask()
    assert again.issue_ticket(request(TERMS, head)).number == example.ticket.number + 1


def test_two_settlements_on_one_model(head: np.ndarray, tmp_path: Path) -> None:
    path, keys = tmp_path / "helper.state", [Ed25519PrivateKey.generate() for _ in range(5)]
    for _ in range(2):  # a new process each time
        example = start_round(TERMS, head, keys, state_path=path)
        assert example.open(write_all(example)).words is not None
    with pytest.raises(Refused, match="2 rounds were settled on this model"):
        start_round(TERMS, head, keys, state_path=path)
    other = start_round(TERMS, head + 1, keys, state_path=path)
    assert other.open(write_all(other)).words is not None


def test_a_ticket_abandons_the_one_before(head: np.ndarray) -> None:
    example = start_round(TERMS, head)
    reports = write_all(example)
    second = replace(example, ticket=example.helper.issue_ticket(request(TERMS, head)))
    with pytest.raises(Refused, match="not the current one"):
        example.open(reports)
    # Reports of the old ticket, sent for the new one, are worthless.
    opened = second.open(reports)
    assert set(opened.outcomes) == {Outcome.UNSIGNED}
    assert opened.words is None


def test_sums_of_too_few_never_leave_the_helper(head: np.ndarray) -> None:
    """Also if the leader withholds its answers for some reports, which is how it can drop clients."""
    for missing in range(1, 32):
        example = start_round(TERMS, head)
        reports = write_all(example)
        checks = leader_checks(example, reports)
        example.helper.check_reports(sealed(example, reports))
        answers = tuple(None if missing >> i & 1 else found for i, found in enumerate(checks.answers))
        outcomes = tuple(Outcome.VALID if found else Outcome.MISSING for found in answers)
        settled = example.helper.settle(Checks(checks.number, outcomes, answers))
        n_accepted = sum(weight > 0 for weight in settled.weights)
        assert (settled.words is None) == (settled.refused is not None)
        assert settled.words is None or n_accepted >= TERMS.smallest
        assert all(weight == 0 for weight, found in zip(settled.weights, answers, strict=True) if found is None)


def test_a_leader_that_lies_in_its_answers_drops_reports_and_learns_nothing(head: np.ndarray) -> None:
    example = start_round(TERMS, head)
    reports = write_all(example)
    checks = leader_checks(example, reports)
    example.helper.check_reports(sealed(example, reports))
    first = checks.answers[0]
    assert first is not None
    lie = replace(first, elements=[first.elements[0] + 1, *first.elements[1:]])
    settled = example.helper.settle(replace(checks, answers=(lie, *checks.answers[1:])))
    assert settled.outcomes[0] == Outcome.UNPROVEN
    assert settled.weights[0] == 0


def test_a_report_without_answers_is_never_valid(head: np.ndarray) -> None:
    example = start_round(TERMS, head)
    reports = write_all(example)
    checks = leader_checks(example, reports)
    example.helper.check_reports(sealed(example, reports))
    settled = example.helper.settle(replace(checks, answers=(None,) * 5))  # "valid", it says
    assert settled.outcomes == (Outcome.MISSING,) * 5
    assert settled.words is None


@pytest.mark.parametrize("cosine", [0, 2**40])
def test_what_others_send_under_a_nodes_key_does_not_cost_its_report(head: np.ndarray, cosine: int) -> None:
    """Public keys are no secret: a malicious client writes that of another into its own report."""
    example = start_round(TERMS, head)
    reports = write_all(example)
    stolen = replace(reports[0], node=reports[1].node, claim=Claim(cosine))
    outcomes = example.open([stolen, *reports[1:4], reports[3]]).outcomes
    assert outcomes[0] in (Outcome.UNSIGNED, Outcome.MALFORMED)
    assert outcomes[1:] == (*(Outcome.VALID,) * 3, Outcome.REPEATED_NODE)


class LyingHelper:
    """Claims another verdict than the rule's."""

    def __init__(self, helper: Helper) -> None:
        self.issue_ticket, self.check_reports, self._settle = helper.issue_ticket, helper.check_reports, helper.settle

    def settle(self, leader: Checks) -> Settled:
        settled = self._settle(leader)
        return replace(settled, weights=tuple(1 - weight for weight in settled.weights))


def test_a_helper_with_another_verdict_is_noticed(head: np.ndarray) -> None:
    example = start_round(TERMS, head)
    with pytest.raises(ServersDisagree):
        replace(example, helper=LyingHelper(example.helper)).open(write_all(example))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "needed"),
    [
        (Policy(smallest=4), "smallest must be at least 4"),
        (Policy(quorum=4), "quorum must be at least 4"),
        (Policy(max_clients=4), "at most 4 clients"),
        (Policy(max_coordinates=13), "at most 13 coordinates"),
    ],
)
def test_the_policy_is_the_helpers_own(head: np.ndarray, policy: Policy, needed: str) -> None:
    with pytest.raises(Refused, match=needed):
        start_round(TERMS, head, policy=policy)


def test_requests_that_are_refused(head: np.ndarray) -> None:
    keys = [Ed25519PrivateKey.generate() for _ in range(5)]
    nodes = tuple(key.public_key().public_bytes_raw() for key in keys)
    helper = Helper(Ed25519PrivateKey.generate(), nodes)
    good = request(TERMS, head)
    helper.issue_ticket(good)
    for bad, needed in (
        (replace(good, terms=replace(TERMS, clients=9, quorum=6)), "the quorum is 6, and the roster has 5 nodes"),
        (replace(good, head=good.head[:-8]), "8 finite numbers"),
        (replace(good, head=np.full(8, np.nan).tobytes()), "8 finite numbers"),
        (replace(good, terms=SCALED), "norms of updates are not opened here"),
    ):
        with pytest.raises(Refused, match=needed):
            helper.issue_ticket(bad)
    with pytest.raises(Refused, match="running median norm is None here"):
        Helper(Ed25519PrivateKey.generate(), nodes, Policy(norms=True)).issue_ticket(replace(good, terms=STARTED))


def test_a_leader_that_lost_a_sum_repeats_the_round_with_the_same_memory(head: np.ndarray, tmp_path: Path) -> None:
    """It crashed after the settlement and before its checkpoint: the helper is one round ahead."""
    path, keys = tmp_path / "helper.state", [Ed25519PrivateKey.generate() for _ in range(5)]

    def settle(terms: Terms, shift: float) -> tuple[object, float | None]:
        example = start_round(terms, head + shift, keys, state_path=path)  # a new process each time
        started = terms.norm_limit is not None and terms.norm_limit.started
        memory = terms.clip if started else None
        rows = (1 + shift) * np.random.default_rng(1).normal(size=(5, 14))
        reports = [example.write(encode_update(row, example.theta, terms), i) for i, row in enumerate(rows)]
        opened = open_round(reports, example.ticket, terms, example.theta, memory, example.helper)
        assert opened.words is not None
        return opened.head, opened.decision.memory

    start = replace(SCALED, threshold="mad", deviations=100.0)  # accepts everybody
    lost, _ = settle(start, 0)
    first, memory = settle(start, 0)
    assert first == lost
    assert HelperState.load(path).memory == memory
    with pytest.raises(Refused, match="2 rounds were settled"):
        settle(start, 0)
    with pytest.raises(Refused, match="and None in the terms"):  # not on another model
        settle(start, 1)
    second = replace(start, norm_limit=STARTED.norm_limit, clip=memory)
    lost, _ = settle(second, 1)
    assert HelperState.load(path).memory != memory
    assert settle(second, 1)[0] == lost


def test_a_client_answers_no_ticket_of_another_helper_model_or_terms(head: np.ndarray) -> None:
    example = start_round(TERMS, head)
    ticket, identity = Ticket.from_bytes(example.ticket.to_bytes()), example.helper.public_key
    assert ticket == example.ticket
    ticket.check(identity, TERMS.digest, ticket.model)
    stolen = Ed25519PrivateKey.generate()
    for bad, needed in (
        (replace(ticket, round_key=bytes(1216)), "not signed"),
        (replace(ticket, number=7), "not signed"),
        (ticket.sign(stolen), "not signed"),
        (replace(ticket, signature=b""), "not signed"),
    ):
        with pytest.raises(RefusedTicket, match=needed):
            bad.check(identity, TERMS.digest, ticket.model)
    with pytest.raises(RefusedTicket, match="other terms"):
        ticket.check(identity, replace(TERMS, smallest=4, quorum=4).digest, ticket.model)
    with pytest.raises(RefusedTicket, match="another model"):
        ticket.check(identity, TERMS.digest, bytes(32))
    with pytest.raises(RefusedTicket, match="another configuration"):
        ticket.check(identity, TERMS.digest, ticket.model, b"1" * 32)


def test_state_survives_and_nothing_else_is_read(tmp_path: Path) -> None:
    path = tmp_path / "helper.state"
    assert HelperState.load(path) == HelperState()
    state = HelperState(7, 6, "ab", 1, 0.5)
    state.save(path)
    assert HelperState.load(path) == state
    assert path.stat().st_mode & 0o777 == 0o600
    table = json.loads(path.read_text())
    for bad in (
        b"", b"\xff\xfe", b"[]", b"null", b"{}", b"[" * 100_000, json.dumps({**table, "more": 1}).encode(),
        json.dumps({**table, "issued": 5}).encode(), json.dumps({**table, "issued": "7"}).encode(),
        json.dumps({**table, "issued": True}).encode(), json.dumps({**table, "memory": -1.0}).encode(),
        json.dumps({**table, "settlements": -1}).encode(), path.read_bytes()[:-1],
    ):  # fmt: skip
        path.write_bytes(bad)
        with pytest.raises(BrokenState, match=str(path)):
            HelperState.load(path)
