"""A round at the leader where updates are compared: it opens their inner products, decides, and opens one sum."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from .comparison import Masked, Products, Projected, Weights
from .exchange import Checks, Outcome, Settled
from .leader import CheckedReports, HelperLink, ServersDisagree, add_sums, check_reports, compare_verdicts
from .projection import RING, SIZE, project
from .report import Report
from .ring import Signed, Words
from .rule import refuse_count, refuse_opening
from .secret_mean import Lesson, MeanProducts, join_products, learn, project_mean
from .terms import Terms
from .ticket import Ticket
from .triples import TripleStock, multiply

LOG = logging.getLogger(__name__)


@runtime_checkable
class ComparingLink(HelperLink, Protocol):
    """A helper that lets updates be compared, in this process or behind a network."""

    def project(self, leader: Checks) -> Projected: ...

    def multiply(self, leader: Masked) -> Products: ...

    def settle_weights(self, leader: Weights) -> Settled: ...


@dataclass(frozen=True, repr=False)
class Compared:
    """What the leader learns about the valid reports before it decides.

    Args:
        clients: The inner products of the projections of every two updates.
        references: Those of every update with the public vectors.
        squares: The squared norms of the projections of the public vectors.
        mean: The inner products of the projected running mean. None: there is none, or a half of it was lost.
    """

    clients: Signed
    references: Signed
    squares: Sequence[int]
    mean: MeanProducts | None = None


Decide = Callable[[Compared], tuple[int, ...]]  # the weights of the valid reports


@dataclass(frozen=True, repr=False)
class LeaderMean:
    """The leader's part of a running mean.

    Args:
        version: The round after which it was what it is; 0: there is none yet.
        halves: The leader's halves of its sums.
        get_lesson: What it learns, for the valid reports; asked after the rule has decided.
    """

    version: int
    halves: Words | None
    get_lesson: Callable[[], Lesson | None]


@dataclass(frozen=True, repr=False)
class ComparedSum:
    """What became of each report, and the opened sum of words. None: it was not opened, for the reason given.

    `mean`: the leader's halves of the running mean, if it learned something.
    """

    outcomes: tuple[Outcome, ...]
    words: Words | None
    refused: str | None
    mean: Words | None = None


def open_compared_round(
    reports: Sequence[Report],
    ticket: Ticket,
    terms: Terms,
    references: Words,
    decide: Decide,
    helper: ComparingLink,
    triples: TripleStock,
    mean: LeaderMean | None = None,
) -> ComparedSum:
    """Check all reports with the helper, open their inner products, decide, and open one sum.

    Args:
        reports: Those that were received.
        ticket: The round's.
        terms: The round's.
        references: The public vectors, as words of the weights.
        decide: The rule.
        helper: The second server.
        triples: The leader's halves.
        mean: Its part of the running mean, if the rule keeps one.
    """
    checked = check_reports(reports, ticket, terms, (), helper)
    outcomes = checked.spread(len(reports))
    refused = refuse_count(len(checked.valid), terms)
    if refused is not None:
        return ComparedSum(outcomes, None, refused)
    compared = _compare(checked, ticket, terms, references, helper, triples, mean)
    found = dict(zip(checked.valid, decide(compared), strict=True))
    weights = tuple(found.get(i, 0) for i in range(len(checked.shown)))
    refused = refuse_opening(weights, terms)
    if refused is not None:
        return ComparedSum(outcomes, None, refused)
    lesson = None if mean is None else mean.get_lesson()
    lesson = None if lesson is None else lesson.spread(checked.valid, len(checked.shown))
    settled = helper.settle_weights(Weights(ticket.number, weights, lesson))
    compare_verdicts(settled, checked.outcomes, weights, None)
    total = add_sums(settled, checked.halves, weights, terms)
    learned = None
    if mean is not None and lesson is not None:
        learned = learn(mean.halves, lesson, (half.words for half in checked.halves), terms.weights)
    return ComparedSum(outcomes, None if total is None else total[1], None, learned)


def _compare(
    checked: CheckedReports,
    ticket: Ticket,
    terms: Terms,
    vectors: Words,
    helper: ComparingLink,
    triples: TripleStock,
    mean: LeaderMean | None,
) -> Compared:
    theirs = helper.project(checked.ours)
    if tuple(o == Outcome.VALID for o in theirs.outcomes) != tuple(o == Outcome.VALID for o in checked.outcomes):
        raise ServersDisagree("leader and helper came to different verdicts")
    if theirs.number != ticket.number or theirs.deal != triples.deal:
        raise ServersDisagree("leader and helper use triples of different deals")
    triple = triples.take(theirs.triple)
    rows = np.stack([project(checked.halves[i].words[: terms.weights], theirs.key) for i in checked.valid])
    n, with_mean = len(rows), _check_mean(theirs, mean)
    if with_mean is not None:
        rows = np.concatenate([rows, project_mean(with_mean, theirs.key, leader=True)])
    if theirs.masked.shape != rows.shape:
        raise ServersDisagree("the helper projected something else")
    ours = rows - triple.mask(len(rows))
    public = project_references(vectors, theirs.key)
    answer = helper.multiply(Masked(ticket.number, ours, public, with_mean is not None))
    if answer.number != ticket.number or answer.clients.shape != (len(rows),) * 2:
        raise ServersDisagree("the helper multiplied something else")
    matrix = multiply(ours + theirs.masked, triple, leader=True) + answer.clients
    references = RING.to_signed(rows[:n] @ public.T + answer.references)
    found = None if with_mean is None else join_products(matrix, n)
    if with_mean is not None and found is None:
        LOG.warning("round %d: the products of the running mean cannot be read: it starts again", ticket.number)
    return Compared(RING.to_signed(matrix[:n, :n]), references, list_squares(public), found)


def _check_mean(theirs: Projected, mean: LeaderMean | None) -> Words | None:
    """The leader's halves of the running mean that both servers have, if they have one."""
    if mean is None or not mean.version:
        if theirs.mean:
            raise ServersDisagree("the helper compared with a running mean that the leader does not have")
        return None
    if not theirs.mean:
        LOG.warning("the helper has no half of the running mean of round %d: the mean starts again", mean.version)
        return None
    if theirs.mean != mean.version:
        raise ServersDisagree("leader and helper have running means of different rounds")
    return mean.halves


def project_references(references: Words, key: bytes) -> Words:
    """The projections of the public vectors, as rows."""
    return np.array([project(row, key) for row in references], np.uint64).reshape(len(references), SIZE)


def list_squares(projected: Words) -> list[int]:
    """The squared norm of each projected public vector."""
    return [sum(v * v for v in row) for row in RING.to_signed(projected).tolist()]
