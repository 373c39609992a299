"""A whole round with compared updates in one process: by the protocol, or from the encoded updates in the clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from .comparing_helper import ComparingHelper
from .comparing_leader import Compared, ComparingLink, list_squares, open_compared_round, project_references
from .comparing_rule import Choice, ComparingRule
from .encoding import Encoded
from .exchange import Outcome, TicketRequest
from .model import ModelParts
from .policy import Policy
from .projection import RING, project
from .report import Report, write_report
from .ring import Words
from .rule import refuse_count
from .terms import Terms
from .ticket import Ticket
from .triples import TripleStock, deal_stocks


@dataclass(frozen=True)
class ComparedOutcomes:
    """What the rule chose, and the opened sum of words, if it was opened."""

    choice: Choice
    words: Words | None


def run_compared_in_the_clear(
    encoded: Sequence[Encoded], parts: ModelParts, params: Tensor, terms: Terms, rule: ComparingRule, key: bytes
) -> ComparedOutcomes:
    """The twin: the same integers, the same projection, the same rule, no cryptography."""
    too_few = refuse_count(len(encoded), terms)
    if too_few is not None:
        return ComparedOutcomes(rule.refuse(len(encoded), too_few), None)
    rows = np.array([project(update.words[: terms.weights], key) for update in encoded], np.uint64)
    public = project_references(rule.encode_references(terms), key)
    products = RING.to_signed(rows @ rows.T), RING.to_signed(rows @ public.T)
    choice = rule.decide(Compared(*products, list_squares(public)), terms)
    if choice.refused is not None:
        return ComparedOutcomes(choice, None)
    total = RING.zeros(terms.words)
    for update, weight in zip(encoded, choice.weights, strict=True):
        total = RING.add(total, RING.multiply(update.words, weight))
    return ComparedOutcomes(choice, total)


def run_compared_protocol(
    encoded: Sequence[Encoded], parts: ModelParts, params: Tensor, terms: Terms, rule: ComparingRule, key: bytes
) -> ComparedOutcomes:
    """The protocol, with clients, dealer, leader and helper as objects."""
    keys = [Ed25519PrivateKey.generate() for _ in range(terms.clients)]
    nodes = tuple(node.public_key().public_bytes_raw() for node in keys)
    leader_triples, helper_triples = deal_stocks(terms.clients)
    helper = ComparingHelper(
        Ed25519PrivateKey.generate(), nodes, Policy(comparisons=True), triples=helper_triples, draw_key=lambda: key
    )
    ticket = helper.issue_ticket(TicketRequest(terms, parts.head_bytes(params), parts.rest_digest(params)))
    ticket.check(helper.public_key, terms.digest, parts.digest(params))
    reports = [write_report(update, (), terms, ticket, node) for update, node in zip(encoded, keys, strict=False)]
    found, outcomes = open_by_rule(reports, ticket, terms, rule, helper, leader_triples)
    refused = [outcome.name for outcome in found if outcome != Outcome.VALID]
    if refused:
        raise AssertionError(f"reports of honest clients were refused: {refused}")
    return outcomes


def open_by_rule(
    reports: Sequence[Report],
    ticket: Ticket,
    terms: Terms,
    rule: ComparingRule,
    helper: ComparingLink,
    triples: TripleStock,
) -> tuple[tuple[Outcome, ...], ComparedOutcomes]:
    """What became of each report, and what was chosen and opened."""
    choices = list[Choice]()

    def decide(compared: Compared) -> tuple[int, ...]:
        choices.append(rule.decide(compared, terms))
        return choices[-1].weights

    opened = open_compared_round(reports, ticket, terms, rule.encode_references(terms), decide, helper, triples)
    n_valid = opened.outcomes.count(Outcome.VALID)
    choice = choices[0] if choices else rule.refuse(n_valid, str(opened.refused))
    return opened.outcomes, ComparedOutcomes(choice, opened.words)
