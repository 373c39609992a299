"""A whole round with compared updates in one process: by the protocol, or from the encoded updates in the clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from .comparing_helper import ComparingHelper
from .comparing_leader import (
    Compared,
    ComparingLink,
    LeaderMean,
    list_squares,
    open_compared_round,
    project_references,
)
from .comparing_rule import Choice, ComparingRule
from .encoding import Encoded
from .exchange import Outcome, TicketRequest
from .mean_store import MeanStore
from .model import ModelParts
from .policy import Policy
from .projection import RING, project
from .report import Report, write_report
from .ring import Words
from .rule import refuse_count
from .secret_mean import learn, multiply_in_the_clear
from .shared_mean import SharedMean
from .terms import Terms
from .ticket import Ticket
from .triples import TripleStock, deal_stocks

SIMULATED = 1  # the number of every ticket in simulations, where each round has a helper of its own


@dataclass(frozen=True)
class ComparedOutcomes:
    """What the rule chose, the opened sum of words, if it was opened, and the running mean, if it learned something."""

    choice: Choice
    words: Words | None
    mean: SharedMean | None = None


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
    halves = None if rule.mean is None else rule.mean.get_words()
    mean = None
    if halves is not None:
        mean = multiply_in_the_clear(RING.to_signed(project(halves[0], key)), RING.to_signed(rows))
    choice = rule.decide(Compared(*products, list_squares(public), mean), terms)
    if choice.refused is not None:
        return ComparedOutcomes(choice, None)
    total = RING.zeros(terms.words)
    for update, weight in zip(encoded, choice.weights, strict=True):
        total = RING.add(total, RING.multiply(update.words, weight))
    learned = None
    if choice.lesson is not None:
        sums = learn(halves, choice.lesson, (update.words for update in encoded), terms.weights)
        learned = SharedMean.of(SIMULATED, choice.total, sums)
    return ComparedOutcomes(choice, total, learned)


def run_compared_protocol(
    encoded: Sequence[Encoded], parts: ModelParts, params: Tensor, terms: Terms, rule: ComparingRule, key: bytes
) -> ComparedOutcomes:
    """The protocol, with clients, dealer, leader and helper as objects."""
    keys = [Ed25519PrivateKey.generate() for _ in range(terms.clients)]
    nodes = tuple(node.public_key().public_bytes_raw() for node in keys)
    leader_triples, helper_triples = deal_stocks(terms.rows)
    means, before = MeanStore(), None if rule.mean is None else rule.mean.get_words(-1)
    if before is not None:
        means.save(SIMULATED, before)
    helper = ComparingHelper(
        Ed25519PrivateKey.generate(), nodes, Policy(comparisons=True), triples=helper_triples, draw_key=lambda: key,
        means=means,
    )  # fmt: skip
    version = 0 if rule.mean is None else rule.mean.version
    request = TicketRequest(terms, parts.head_bytes(params), parts.rest_digest(params), mean=version)
    ticket = helper.issue_ticket(request)
    ticket.check(helper.public_key, terms.digest, parts.digest(params))
    reports = [write_report(update, (), terms, ticket, node) for update, node in zip(encoded, keys, strict=False)]
    found, outcomes = open_by_rule(reports, ticket, terms, rule, helper, leader_triples)
    refused = [outcome.name for outcome in found if outcome != Outcome.VALID]
    if refused:
        raise AssertionError(f"reports of honest clients were refused: {refused}")
    if outcomes.mean is None:
        return outcomes
    ours, theirs = outcomes.mean.get_words(), means.find(ticket.number, terms.weights)
    assert ours is not None
    assert theirs is not None
    return replace(outcomes, mean=SharedMean.of(SIMULATED, outcomes.mean.total, ours, theirs))


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

    mean = None
    if rule.mean is not None:
        mean = LeaderMean(rule.mean.version, rule.mean.get_words(), lambda: choices[-1].lesson)
    references = rule.encode_references(terms)
    opened = open_compared_round(reports, ticket, terms, references, decide, helper, triples, mean)
    n_valid = opened.outcomes.count(Outcome.VALID)
    choice = choices[0] if choices else rule.refuse(n_valid, str(opened.refused))
    learned = None if opened.mean is None else SharedMean.of(ticket.number, choice.total, opened.mean)
    return opened.outcomes, ComparedOutcomes(choice, opened.words, learned)
