"""The helper: the second server. It knows one half of every update, and decides with the leader who is accepted.

It keeps no update on disk, sees neither the model nor the sum, and gives one sum for each ticket.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .exchange import Checks, Outcome, Reports, Settled, TicketRequest
from .halves import Answers, ReportKeys, Shape, answer, expand_half, expand_head
from .helper_state import HelperState
from .policy import Policy, Refused
from .report import SealedReport
from .rule import decide
from .streams import KEY, digest
from .sums import add_half, empty_sum
from .terms import Terms
from .ticket import RoundKey, Ticket


@dataclass(repr=False)
class _Round:
    """The current round. Forgotten when the next ticket is issued."""

    request: TicketRequest
    roster: frozenset[bytes]  # as it was when the ticket was issued
    memory: float | None  # the running median norm before this round
    ticket: Ticket
    key: RoundKey | None  # None: the round is settled
    body: bytes | None = None  # digest of the reports
    reports: tuple[SealedReport, ...] = ()
    seeds: tuple[bytes | None, ...] = ()
    checks: Checks | None = None
    settlement: tuple[bytes, Settled] | None = None  # digest of the leader's answers, and the reply to them


class Helper:
    """Issues tickets, checks reports, settles rounds. One at a time; it knows no network.

    Args:
        identity: Signs tickets. Every client knows its public key.
        roster: The public keys of all nodes that may take part.
        policy: What it agrees to.
        state_path: Where it remembers settled rounds. None: nowhere, for simulations.
        memory: The running median norm to start with, for simulations.
    """

    def __init__(
        self,
        identity: Ed25519PrivateKey,
        roster: Collection[bytes],
        policy: Policy = Policy(),
        state_path: Path | None = None,
        *,
        memory: float | None = None,
    ) -> None:
        self.roster, self.policy = frozenset(roster), policy
        self._identity, self._path = identity, state_path
        self._state = HelperState.load(state_path)
        if memory is not None:
            self._state = replace(self._state, memory=memory)
        self._round: _Round | None = None

    @property
    def public_key(self) -> bytes:
        return self._identity.public_key().public_bytes_raw()

    def issue_ticket(self, request: TicketRequest) -> Ticket:
        """A ticket for a new round. The round before, if it is not settled, is abandoned."""
        self.policy.check(request, len(self.roster))
        model = model_digest(request.head, request.rest)
        count = self._count_settlements(model.hex())
        if count >= self.policy.max_settlements:  # a ticket is settled once, so that it is enough to count them here
            raise Refused(f"{count} rounds were settled on this model, and no more are allowed")
        memory = self._find_memory(request.terms, model.hex())
        self._save(replace(self._state, issued=self._state.issued + 1))
        key = RoundKey()
        nonce, digests = os.urandom(KEY), (request.terms.digest, model, request.others)
        ticket = Ticket(self._state.issued, nonce, key.public, *digests)
        self._round = _Round(request, self.roster, memory, ticket.sign(self._identity), key)
        return self._round.ticket

    def check_reports(self, reports: Reports) -> Checks:
        """The helper's half of the check of every report. The same reports again get the same answers."""
        current, body = self._current(reports.number), digest("reports", reports.to_bytes())
        if current.checks is not None:
            if current.body != body:
                raise Refused(f"round {reports.number} has its reports already")
            return current.checks
        if len(reports.reports) > current.request.terms.clients:
            raise Refused(f"{len(reports.reports)} reports, and the terms say {current.request.terms.clients} clients")
        found, seen = [], set[bytes]()
        for report in reports.reports:
            keys = report.keys(current.ticket)
            outcome, seed = self._open(report, keys, current, seen)
            found.append((outcome, seed, None if seed is None else self._answer(report, keys, seed, current)))
        current.body, current.reports = body, reports.reports
        current.seeds = tuple(seed for _, seed, _ in found)
        current.checks = Checks(reports.number, tuple(o for o, _, _ in found), tuple(a for _, _, a in found))
        return current.checks

    def settle(self, leader: Checks) -> Settled:
        """Verify, decide, and give the half of the sum: once for each ticket. The same answers get the same reply."""
        current, body = self._current(leader.number), digest("answers", leader.to_bytes())
        if current.settlement is not None:
            if current.settlement[0] != body:
                raise Refused(f"round {leader.number} is settled")
            return current.settlement[1]
        if current.checks is None or len(leader.answers) != len(current.reports):
            raise Refused(f"round {leader.number} needs answers for each of its {len(current.reports)} reports")
        settled, memory = self._decide(current, current.checks, leader)
        if settled.refused is None:
            self._save_settlement(current, memory)
            settled = self._sum(current, settled)
        current.settlement = (body, settled)
        current.key, current.seeds = None, ()  # whoever takes over this computer later finds no half of an update
        return settled

    def _count_settlements(self, model: str) -> int:
        return self._state.settlements if self._state.model == model else 0

    def _find_memory(self, terms: Terms, model: str) -> float | None:
        """The running median norm that a round on this model starts with.

        A leader that lost the sum of a settlement repeats the round, on the same model and from the same memory.
        """
        state, limit = self._state, terms.norm_limit
        if limit is None:
            return state.memory
        asked = terms.clip if limit.started else None
        if asked != state.memory and not (state.model == model and asked == state.before):
            raise Refused(f"the running median norm is {state.memory} here, and {asked} in the terms")
        return asked

    def _current(self, number: int) -> _Round:
        if self._round is None or self._round.ticket.number != number:
            raise Refused(f"round {number} is not the current one")
        return self._round

    def _open(
        self, report: SealedReport, keys: ReportKeys, current: _Round, seen: set[bytes]
    ) -> tuple[Outcome, bytes | None]:
        if report.node not in current.roster:
            return Outcome.UNKNOWN_NODE, None
        if not report.claim.is_possible(current.request.terms):
            return Outcome.MALFORMED, None
        transcript = keys.transcript(report.claim, report.rest)
        if not report.is_signed(transcript):
            return Outcome.UNSIGNED, None
        # Only after the signature: what others send under a node's key must not cost the node its own report.
        if report.node in seen:
            return Outcome.REPEATED_NODE, None
        seen.add(report.node)
        assert current.key is not None  # reports are opened before the round is settled
        seed = current.key.unseal(report.sealed, transcript)
        if seed is None or len(seed) != KEY or digest("seed", seed) != report.seed:
            return Outcome.UNSEALED, None
        return Outcome.VALID, seed

    def _answer(self, report: SealedReport, keys: ReportKeys, seed: bytes, current: _Round) -> Answers:
        terms, theta = current.request.terms, current.request.theta
        half = expand_half(seed, current.request.shape, terms)
        transcript = keys.transcript(report.claim, report.rest)
        return answer(half, keys, report.claim, transcript, theta, terms, leader=False)

    def _decide(self, current: _Round, ours: Checks, leader: Checks) -> tuple[Settled, float | None]:
        terms, theta = current.request.terms, current.request.theta
        outcomes = compare(ours, leader, current.request.shape)
        valid = [i for i, outcome in enumerate(outcomes) if outcome == Outcome.VALID]
        claims = [current.reports[i].claim for i in valid]
        decision = decide(claims, terms, current.memory, with_cosine=any(theta))
        weights = [0] * len(outcomes)
        for i, weight in zip(valid, decision.weights, strict=True):
            weights[i] = weight
        return Settled(leader.number, outcomes, tuple(weights), decision.refused), decision.memory

    def _sum(self, current: _Round, settled: Settled) -> Settled:
        terms = current.request.terms
        total = empty_sum(terms)
        for seed, weight in zip(current.seeds, settled.weights, strict=True):
            if weight:
                assert seed is not None
                words = terms.ring.draw(seed, terms.words)
                total = add_half(total, expand_head(seed, terms), words, weight, terms)
        return replace(settled, head=total[0], words=total[1])

    def _save_settlement(self, current: _Round, memory: float | None) -> None:
        """On disk before the sum leaves: two sums of one round could differ by one client."""
        model = current.ticket.model.hex()
        count = self._count_settlements(model) + 1
        self._save(HelperState(self._state.issued, current.ticket.number, model, count, memory, current.memory))

    def _save(self, state: HelperState) -> None:
        try:
            state.save(self._path)
        except OSError as error:  # a full disk: nothing leaves that is not remembered
            raise Refused(f"the helper's state cannot be written: {error.strerror}") from error
        self._state = state


def compare(ours: Checks, theirs: Checks, shape: Shape) -> tuple[Outcome, ...]:
    """What became of each report, from both servers' answers."""
    outcomes = list[Outcome]()
    for mine, other, *codes in zip(ours.answers, theirs.answers, ours.outcomes, theirs.outcomes, strict=True):
        if mine is None or other is None:
            code = codes[0] if mine is None else codes[1]
            outcomes.append(Outcome.MISSING if code == Outcome.VALID else code)
        else:
            outcomes.append(Outcome.VALID if mine.agree_with(other, shape) else Outcome.UNPROVEN)
    return tuple(outcomes)


def model_digest(head: bytes, rest: bytes) -> bytes:
    """The digest of the global model, from its head and a digest of its other tensors."""
    return digest("model", digest("head", head), rest)
