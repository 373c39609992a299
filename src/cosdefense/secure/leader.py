"""A round at the leader: it checks its halves of the reports, settles with the helper, and adds the two sums."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .exchange import Checks, Outcome, Reports, Settled, TicketRequest
from .halves import Answers, Half, Shape, answer
from .helper import compare
from .messages import Malformed
from .report import Report, SealedReport
from .ring import Words
from .rule import Decision, decide
from .sums import Sum, add_half
from .terms import Terms
from .ticket import Ticket


@runtime_checkable
class HelperLink(Protocol):
    """The helper, in this process or behind a network."""

    def issue_ticket(self, request: TicketRequest) -> Ticket: ...

    def check_reports(self, reports: Reports) -> Checks: ...

    def settle(self, leader: Checks) -> Settled: ...


@dataclass(frozen=True, repr=False)
class Opened:
    """What both servers know after a round.

    Args:
        outcomes: What became of each report.
        decision: About those that are valid, in their order.
        head: The sum of the accepted heads. Empty: it was not opened.
        words: The sum of the accepted words.
    """

    outcomes: tuple[Outcome, ...]
    decision: Decision
    head: Sequence[int] = ()
    words: Words | None = None


class HelperUnreachable(ConnectionError):
    """The helper does not answer, or answers something else than the protocol. The round must be skipped."""


class ServersDisagree(RuntimeError):
    """The two servers came to different verdicts: their versions differ, or one does not follow the protocol."""


@dataclass(frozen=True, repr=False)
class CheckedReports:
    """The reports that can be read, and both servers' checks of them.

    Args:
        kept: Their positions among all reports.
        halves: The leader's halves.
        shown: What the helper got.
        ours: The leader's answers.
        outcomes: What became of each.
    """

    kept: Sequence[int]
    halves: Sequence[Half]
    shown: Sequence[SealedReport]
    ours: Checks
    outcomes: tuple[Outcome, ...]

    @property
    def valid(self) -> list[int]:
        return [i for i, outcome in enumerate(self.outcomes) if outcome == Outcome.VALID]

    def spread(self, n: int) -> tuple[Outcome, ...]:
        """What became of each of all `n` reports."""
        every = [Outcome.MALFORMED] * n
        for i, outcome in zip(self.kept, self.outcomes, strict=True):
            every[i] = outcome
        return tuple(every)


def check_reports(
    reports: Sequence[Report], ticket: Ticket, terms: Terms, theta: Sequence[int], helper: HelperLink
) -> CheckedReports:
    """Check all reports with the helper. One that cannot be read costs its client the round; the helper gets it not."""
    with_cosine = any(theta)
    read = [_read(report, terms, with_cosine=with_cosine) for report in reports]
    kept = [i for i, half in enumerate(read) if half is not None]
    halves = [half for half in read if half is not None]
    shown = [reports[i].for_helper() for i in kept]
    with ThreadPoolExecutor(1) as pool:  # the helper computes its halves at the same time
        asked = pool.submit(helper.check_reports, Reports(ticket.number, tuple(shown)))
        ours = _check(shown, halves, ticket, terms, theta)
        theirs = asked.result()
    if len(theirs.answers) != len(shown):
        raise ServersDisagree(f"the helper answered for {len(theirs.answers)} of {len(shown)} reports")
    outcomes = compare(ours, theirs, Shape.of(terms, with_cosine=with_cosine))
    return CheckedReports(kept, halves, shown, ours, outcomes)


def open_round(
    reports: Sequence[Report],
    ticket: Ticket,
    terms: Terms,
    theta: Sequence[int],
    memory: float | None,
    helper: HelperLink,
) -> Opened:
    """Check all reports with the helper, and open the sum of those that are accepted."""
    checked = check_reports(reports, ticket, terms, theta, helper)
    claims = [checked.shown[i].claim for i in checked.valid]
    decision = decide(claims, terms, memory, with_cosine=any(theta))
    weights = dict(zip(checked.valid, decision.weights, strict=True))
    settled = helper.settle(checked.ours)
    every = tuple(weights.get(i, 0) for i in range(len(checked.shown)))
    compare_verdicts(settled, checked.outcomes, every, decision.refused)
    total = add_sums(settled, checked.halves, every, terms)
    return Opened(checked.spread(len(reports)), decision, *(total or ()))


def add_sums(settled: Settled, halves: Sequence[Half], weights: Sequence[int], terms: Terms) -> Sum | None:
    """The sum of both halves. None: it must not be opened."""
    if settled.words is None:
        return None
    total = (list(settled.head), settled.words)
    for half, weight in zip(halves, weights, strict=True):
        if weight:
            total = add_half(total, half.numbers.head, half.words, weight, terms)
    return total


def compare_verdicts(
    settled: Settled, outcomes: Sequence[Outcome], weights: tuple[int, ...], refused: str | None
) -> None:
    """The helper must have come to the same verdict, and have given a sum exactly if one may be opened."""
    ours = (tuple(o == Outcome.VALID for o in outcomes), weights, refused, refused is not None)
    valid = tuple(o == Outcome.VALID for o in settled.outcomes)
    if ours != (valid, settled.weights, settled.refused, settled.words is None):
        raise ServersDisagree("leader and helper came to different verdicts")


def _read(report: Report, terms: Terms, *, with_cosine: bool) -> Half | None:
    try:
        return report.leader_half(terms, with_cosine=with_cosine)
    except Malformed:
        return None


def _check(
    shown: Sequence[SealedReport], halves: Sequence[Half], ticket: Ticket, terms: Terms, theta: Sequence[int]
) -> Checks:
    """The leader's half of the check of every report."""
    outcomes, answers = list[Outcome](), list[Answers | None]()
    for report, half in zip(shown, halves, strict=True):
        possible = report.claim.is_possible(terms)
        keys = report.keys(ticket)
        transcript = keys.transcript(report.claim, report.rest)
        outcomes.append(Outcome.VALID if possible else Outcome.MALFORMED)
        answers.append(answer(half, keys, report.claim, transcript, theta, terms, leader=True) if possible else None)
    return Checks(ticket.number, tuple(outcomes), tuple(answers))
