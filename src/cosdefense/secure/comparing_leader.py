"""A round at the leader where updates are compared: it opens their inner products, decides, and opens one sum."""

from __future__ import annotations

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
from .terms import Terms
from .ticket import Ticket
from .triples import TripleStock, multiply


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
    """

    clients: Signed
    references: Signed
    squares: Sequence[int]


Decide = Callable[[Compared], tuple[int, ...]]  # the weights of the valid reports


@dataclass(frozen=True, repr=False)
class ComparedSum:
    """What became of each report, and the opened sum of words. None: it was not opened, for the reason given."""

    outcomes: tuple[Outcome, ...]
    words: Words | None
    refused: str | None


def open_compared_round(
    reports: Sequence[Report],
    ticket: Ticket,
    terms: Terms,
    references: Words,
    decide: Decide,
    helper: ComparingLink,
    triples: TripleStock,
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
    """
    checked = check_reports(reports, ticket, terms, (), helper)
    outcomes = checked.spread(len(reports))
    refused = refuse_count(len(checked.valid), terms)
    if refused is not None:
        return ComparedSum(outcomes, None, refused)
    found = dict(zip(checked.valid, decide(_compare(checked, ticket, terms, references, helper, triples)), strict=True))
    weights = tuple(found.get(i, 0) for i in range(len(checked.shown)))
    refused = refuse_opening(weights, terms)
    if refused is not None:
        return ComparedSum(outcomes, None, refused)
    settled = helper.settle_weights(Weights(ticket.number, weights))
    compare_verdicts(settled, checked.outcomes, weights, None)
    total = add_sums(settled, checked.halves, weights, terms)
    return ComparedSum(outcomes, None if total is None else total[1], None)


def _compare(
    checked: CheckedReports,
    ticket: Ticket,
    terms: Terms,
    vectors: Words,
    helper: ComparingLink,
    triples: TripleStock,
) -> Compared:
    theirs = helper.project(checked.ours)
    if tuple(o == Outcome.VALID for o in theirs.outcomes) != tuple(o == Outcome.VALID for o in checked.outcomes):
        raise ServersDisagree("leader and helper came to different verdicts")
    if theirs.number != ticket.number or theirs.deal != triples.deal:
        raise ServersDisagree("leader and helper use triples of different deals")
    triple = triples.take(theirs.triple)
    rows = np.stack([project(checked.halves[i].words[: terms.weights], theirs.key) for i in checked.valid])
    ours = rows - triple.mask(len(rows))
    public = project_references(vectors, theirs.key)
    answer = helper.multiply(Masked(ticket.number, ours, public))
    if answer.number != ticket.number or answer.clients.shape != (len(rows),) * 2:
        raise ServersDisagree("the helper multiplied something else")
    clients = multiply(ours + theirs.masked, triple, leader=True) + answer.clients
    references = RING.to_signed(rows @ public.T + answer.references)
    return Compared(RING.to_signed(clients), references, list_squares(public))


def project_references(references: Words, key: bytes) -> Words:
    """The projections of the public vectors, as rows."""
    return np.array([project(row, key) for row in references], np.uint64).reshape(len(references), SIZE)


def list_squares(projected: Words) -> list[int]:
    """The squared norm of each projected public vector."""
    return [sum(v * v for v in row) for row in RING.to_signed(projected).tolist()]
