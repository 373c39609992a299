"""Rounds of secure aggregation where updates are compared, for tests: clients, dealer, both servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_examples import CLIPPED, Example, encode_update

from cosdefense.secure.comparing_helper import ComparingHelper
from cosdefense.secure.comparing_leader import Compared, ComparedSum, ComparingLink, open_compared_round
from cosdefense.secure.comparison import VOTE
from cosdefense.secure.encoding import Encoded
from cosdefense.secure.exchange import TicketRequest
from cosdefense.secure.policy import Policy
from cosdefense.secure.report import Report
from cosdefense.secure.ring import Words
from cosdefense.secure.terms import Terms
from cosdefense.secure.triples import TripleStock, deal_stocks

COMPARED = replace(CLIPPED, head=0, weights=14, references=0)
Decide = Callable[[Compared], tuple[int, ...]]


def everybody(compared: Compared) -> tuple[int, ...]:
    return (VOTE,) * len(compared.clients)


@dataclass(frozen=True)
class ComparingExample:
    """A round before its reports are written."""

    terms: Terms
    helper: ComparingHelper
    triples: TripleStock
    round: Example

    def write(self, encoded: Encoded, i: int) -> Report:
        return self.round.write(encoded, i)

    def write_all(self, rows: np.ndarray) -> list[Report]:
        return [self.write(encode_update(row, [], self.terms), i) for i, row in enumerate(rows)]

    def open(
        self,
        reports: list[Report],
        decide: Decide = everybody,
        references: Words | None = None,
        helper: ComparingLink | None = None,
    ) -> ComparedSum:
        vectors = np.zeros((0, self.terms.weights), np.uint64) if references is None else references
        link = helper or self.helper
        return open_compared_round(reports, self.round.ticket, self.terms, vectors, decide, link, self.triples)


def start_comparison(
    terms: Terms = COMPARED, keys: list[Ed25519PrivateKey] | None = None, count: int = 1
) -> ComparingExample:
    """A helper with a fresh ticket for these terms, and so many triples."""
    keys = keys or [Ed25519PrivateKey.generate() for _ in range(terms.clients)]
    nodes = tuple(key.public_key().public_bytes_raw() for key in keys)
    ours, theirs = deal_stocks(terms.clients, count)
    helper = ComparingHelper(Ed25519PrivateKey.generate(), nodes, Policy(comparisons=True), triples=theirs)
    ticket = helper.issue_ticket(TicketRequest(terms, b"", bytes(32)))
    return ComparingExample(terms, helper, ours, Example(terms, [], keys, helper, ticket))
