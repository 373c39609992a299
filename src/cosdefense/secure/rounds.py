"""A whole round in one process: by the protocol, or from the encoded updates in the clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from .encoding import Encoded
from .exchange import Outcome, TicketRequest
from .helper import Helper
from .leader import open_round
from .model import ModelParts
from .policy import Policy
from .report import write_report
from .ring import Words
from .rule import Decision, decide
from .statements import Claim, claim
from .terms import Terms


@dataclass(frozen=True)
class Outcomes:
    """The claims, the decision, and the opened sums of heads and of words, if they were opened."""

    claims: tuple[Claim, ...]
    decision: Decision
    sums: tuple[Sequence[int], Words] | None


def run_in_the_clear(
    encoded: Sequence[Encoded], parts: ModelParts, params: Tensor, theta: list[int], terms: Terms, memory: float | None
) -> Outcomes:
    """The twin: the same integers, the same rule, no cryptography."""
    claims = tuple(claim(update, theta, terms) for update in encoded)
    decision = decide(claims, terms, memory, with_cosine=any(theta))
    if decision.refused is not None:
        return Outcomes(claims, decision, None)
    head = np.zeros(terms.head, object)  # of many clients with weights, not even 64 bits are enough
    words = np.zeros(terms.words, np.int64)
    for update, weight in zip(encoded, decision.weights, strict=True):
        if weight:
            head += weight * update.head.astype(object)
            words += weight * terms.ring.to_signed(update.words)
    return Outcomes(claims, decision, (head.tolist(), terms.ring.from_signed(words)))


def run_protocol(
    encoded: Sequence[Encoded], parts: ModelParts, params: Tensor, theta: list[int], terms: Terms, memory: float | None
) -> Outcomes:
    """The protocol, with clients, leader and helper as objects."""
    keys = [Ed25519PrivateKey.generate() for _ in range(terms.clients)]
    nodes = tuple(key.public_key().public_bytes_raw() for key in keys)
    helper = Helper(Ed25519PrivateKey.generate(), nodes, Policy(norms=True), memory=memory)
    ticket = helper.issue_ticket(TicketRequest(terms, parts.head_bytes(params), parts.rest_digest(params)))
    ticket.check(helper.public_key, terms.digest, parts.digest(params))
    reports = [write_report(update, theta, terms, ticket, key) for update, key in zip(encoded, keys, strict=False)]
    opened = open_round(reports, ticket, terms, theta, memory, helper)
    refused = [outcome.name for outcome in opened.outcomes if outcome != Outcome.VALID]
    if refused:
        raise AssertionError(f"reports of honest clients were refused: {refused}")
    claims = tuple(report.claim for report in reports)
    return Outcomes(claims, opened.decision, None if opened.words is None else (opened.head, opened.words))
