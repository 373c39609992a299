"""The leader's end of secure aggregation: asks for tickets, and opens rounds with the helper."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import Message
from numpy import dtype

from ..core import Cohort, Judged, State, TooFewClients
from ..runs.safe_text import printable
from ..secure.compared_rounds import ComparedOutcomes, open_by_rule
from ..secure.comparing_leader import ComparingLink
from ..secure.comparing_rule import ComparingRule
from ..secure.defense import Secure
from ..secure.exchange import Outcome, TicketRequest
from ..secure.leader import HelperLink, HelperUnreachable, ServersDisagree, open_round
from ..secure.messages import Malformed
from ..secure.model import ModelParts
from ..secure.policy import Refused
from ..secure.report import Report
from ..secure.rounds import Outcomes
from ..secure.statements import Claim
from ..secure.terms import STEPS, TOLERANCE, Terms
from ..secure.triples import NoTriple, TripleStock
from .arrays import ArraySpec
from .node_ids import to_signed
from .reasons import Reason
from .reply_checks import CheckedReplies, ValidReply
from .secure_record import REPORT, SecureRecord, digest_others
from .sent_model import SentModel

log = logging.getLogger("flwr")

MAX_FAILED = 5  # rounds in a row without the helper, after which the run ends
REASONS = {
    Outcome.MALFORMED: Reason.FORMAT, Outcome.UNKNOWN_NODE: Reason.UNKNOWN, Outcome.REPEATED_NODE: Reason.DUPLICATE,
    Outcome.UNSIGNED: Reason.UNSIGNED, Outcome.UNSEALED: Reason.UNSEALED, Outcome.UNPROVEN: Reason.UNPROVEN,
    Outcome.MISSING: Reason.UNPROVEN,
}  # fmt: skip
DETAILS = {
    Outcome.MALFORMED: "its report has the wrong form", Outcome.UNKNOWN_NODE: "its key is not in the helper's roster",
    Outcome.REPEATED_NODE: "another report has the same key",
    Outcome.UNSIGNED: "the signature does not cover this report and this ticket",
    Outcome.UNSEALED: "the helper cannot decrypt its half",
    Outcome.UNPROVEN: "its claim does not follow from its report",
    Outcome.MISSING: "the helper has no answer for it",
}  # fmt: skip


class HelperLost(RuntimeError):
    """The helper failed in many rounds in a row, so the run ends. Its checkpoint can be resumed."""


class HelperFailed(RuntimeError):
    """The helper cannot be reached, refuses, or came to another verdict: the round is skipped."""


@dataclass(frozen=True)
class LeaderRound:
    """A round that the helper gave a ticket for."""

    record: SecureRecord
    parts: ModelParts
    model: SentModel
    theta: list[int]
    memory: float | None
    rule: ComparingRule | None = None  # where updates are compared

    @property
    def terms(self) -> Terms:
        return self.record.terms

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """What a reply must hold."""
        size = Report.count_bytes(self.terms, with_cosine=any(self.theta))
        return {REPORT: ArraySpec((size,), dtype("uint8"))}


class SecureLeader:
    """Runs the rounds of one federation with one helper."""

    def __init__(self, defense: Secure, helper: HelperLink, run_config: Mapping[str, object]) -> None:
        self.defense, self.helper, self.run_config = defense, helper, run_config
        self.current: LeaderRound | None = None
        self.problem: str | None = None  # why no client was asked in this round
        self.failed = False  # whether that is the helper's doing
        self._n_failed = 0

    def prepare(self, messages: list[Message], model: SentModel, state: State, quorum: int) -> list[Message]:
        """The messages with a ticket. None at all if there is no ticket: never without one."""
        self.current, self.problem, self.failed = None, None, False
        if not messages:
            return []
        try:
            self.current = self._ask(messages, model, state, quorum)
        except TooFewClients as problem:
            self.problem = str(problem)
        except HelperFailed as problem:
            self.problem, self.failed = str(problem), True
        if self.current is None:
            return []
        for message in messages:
            self.current.record.write(message)
        return messages

    def _ask(self, messages: list[Message], model: SentModel, state: State, quorum: int) -> LeaderRound:
        others = {digest_others(message, model.arrays, model.layout, self.run_config) for message in messages}
        if len(others) > 1:
            raise ValueError("Secure needs a strategy that sends the same configuration to every node")
        memory, parts = self.defense.get_memory(state), self.defense.get_parts(model.layout)
        rule = self.defense.rule(model.params, state) if self.defense.compares else None
        references = 0 if rule is None else len(rule.references)
        terms = self.defense.terms(parts, model.params, len(messages), memory, quorum, references)
        digests, version = parts.rest_digest(model.params), 0
        if rule is not None and rule.mean is not None:
            version = rule.mean.version
        request = TicketRequest(terms, parts.head_bytes(model.params), digests, others.pop(), version)
        try:
            ticket = self.helper.issue_ticket(request)
        except (HelperUnreachable, Refused) as problem:
            raise self._count_failure(problem) from problem
        log.info("ticket %d of the helper, model %s", ticket.number, ticket.model.hex()[:8])
        return LeaderRound(SecureRecord(ticket, terms, parts.layer or ""), parts, model, request.theta, memory, rule)

    def open(self, checked: CheckedReplies) -> tuple[CheckedReplies, Outcomes | ComparedOutcomes]:
        """Check all reports with the helper, and open the sum. Replies whose reports are refused become rejections."""
        assert self.current is not None
        current, readable, reports = self.current, list[ValidReply](), list[Report]()
        rest = replace(checked, valid=[], rejected=list(checked.rejected))
        for reply in checked.valid:
            try:
                data = memoryview(reply.arrays[REPORT])  # type: ignore[arg-type]
                reports.append(Report.from_bytes(data, current.terms, with_cosine=any(current.theta)))
                readable.append(reply)
            except Malformed as problem:
                rest.reject(reply.node, Reason.FORMAT, str(problem))
        try:
            found, outcomes = self._open(reports, current)
        except (HelperUnreachable, Refused, ServersDisagree, NoTriple) as problem:
            raise self._count_failure(problem) from problem
        self._n_failed = 0
        for reply, report, outcome in zip(readable, reports, found, strict=True):
            if outcome == Outcome.VALID:
                rest.valid.append(replace(reply, norm=_bound_norm(report.claim, current.terms)))
            else:
                rest.reject(reply.node, REASONS[outcome], DETAILS[outcome])
        return rest, outcomes

    def _open(
        self, reports: Sequence[Report], current: LeaderRound
    ) -> tuple[tuple[Outcome, ...], Outcomes | ComparedOutcomes]:
        """What became of each report, and what was decided and opened."""
        ticket, terms = current.record.ticket, current.terms
        if current.rule is not None:
            triples = getattr(self.helper, "triples", None)
            assert isinstance(self.helper, ComparingLink)
            assert isinstance(triples, TripleStock)
            return open_by_rule(reports, ticket, terms, current.rule, self.helper, triples)
        opened = open_round(reports, ticket, terms, current.theta, current.memory, self.helper)
        claims = tuple(r.claim for r, o in zip(reports, opened.outcomes, strict=True) if o == Outcome.VALID)
        sums = None if opened.words is None else (opened.head, opened.words)
        return opened.outcomes, Outcomes(claims, opened.decision, sums)

    def judge(
        self, replies: Sequence[ValidReply], outcomes: Outcomes | ComparedOutcomes, state: State, seed: int
    ) -> tuple[Judged, State]:
        """What was decided about the replies whose reports are valid."""
        assert self.current is not None
        model, n = self.current.model, len(replies)
        unseen = model.params.new_zeros(1).expand(n, len(model.params))  # nobody has these rows
        clients = torch.tensor([to_signed(reply.node) for reply in replies], dtype=torch.long)
        cohort = Cohort.of(unseen, model.params, model.layout, clients, seed=seed)
        parts, terms = self.current.parts, self.current.terms
        if isinstance(outcomes, ComparedOutcomes):
            return self.defense.conclude_compared(cohort, range(n), outcomes, parts, terms, state)
        return self.defense.conclude(cohort, range(n), outcomes, parts, terms, state)

    def _count_failure(self, problem: Exception) -> HelperFailed:
        self._n_failed += 1
        text = printable(problem)
        if isinstance(problem, ServersDisagree):
            log.error("%s: their versions differ, or one of them does not follow the protocol", text)
        if self._n_failed >= MAX_FAILED:
            raise HelperLost(f"{self._n_failed} rounds in a row failed with the helper: {text}") from problem
        return HelperFailed(f"the helper: {text}")


def _bound_norm(claim: Claim, terms: Terms) -> float:
    """How long an update can be at most, as far as its proof tells."""
    if terms.clip is None:
        return math.inf
    return float(TOLERANCE) * terms.clip * (1.0 if terms.norm_limit is None else claim.length / STEPS)
