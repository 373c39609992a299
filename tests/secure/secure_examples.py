"""Rounds of secure aggregation for tests: clients with known updates, a helper, a ticket."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cosdefense.secure.encoding import Encoded, encode, encode_public_head, shorten
from cosdefense.secure.exchange import TicketRequest
from cosdefense.secure.helper import Helper
from cosdefense.secure.leader import Opened, open_round
from cosdefense.secure.policy import Policy
from cosdefense.secure.report import Report, write_report
from cosdefense.secure.terms import NormLimitTerms, Terms
from cosdefense.secure.ticket import Ticket

THOROUGH = bool(os.environ.get("COSDEFENSE_THOROUGH"))
thorough = pytest.mark.skipif(not THOROUGH, reason="long: set COSDEFENSE_THOROUGH=1")

TERMS = Terms(
    clients=5, head=8, weights=6, buffers=0, units=(), threshold="mean", deviations=1.0, clip=None, norm_limit=None,
    buffer_clip=1.0, largest=8.0, smallest=3, quorum=3,
)  # fmt: skip
CLIPPED = replace(TERMS, clip=4.0)
WITH_BUFFERS = replace(CLIPPED, buffers=4, units=((2, 0), (2, 1)))
SCALED = replace(CLIPPED, norm_limit=NormLimitTerms(2.0, 0.95, 0.4, started=False))


@dataclass(frozen=True)
class Example:
    """A round before its reports are written."""

    terms: Terms
    theta: list[int]
    keys: list[Ed25519PrivateKey]
    helper: Helper
    ticket: Ticket

    def write(self, encoded: Encoded, i: int) -> Report:
        return write_report(encoded, self.theta, self.terms, self.ticket, self.keys[i])

    def open(self, reports: list[Report]) -> Opened:
        return open_round(reports, self.ticket, self.terms, self.theta, None, self.helper)


def start_round(
    terms: Terms, head: np.ndarray, keys: list[Ed25519PrivateKey] | None = None, **options: object
) -> Example:
    """A helper with a fresh ticket for these terms."""
    keys = keys or [Ed25519PrivateKey.generate() for _ in range(terms.clients)]
    nodes = tuple(key.public_key().public_bytes_raw() for key in keys)
    options = {"policy": Policy(norms=True)} | options
    helper = Helper(Ed25519PrivateKey.generate(), nodes, **options)  # type: ignore[arg-type]
    ticket = helper.issue_ticket(request(terms, head))
    return Example(terms, encode_public_head(head), keys, helper, ticket)


def request(terms: Terms, head: np.ndarray, rest: bytes = bytes(32)) -> TicketRequest:
    return TicketRequest(terms, head.astype("<f8").tobytes(), rest)


def encode_update(values: np.ndarray, theta: list[int], terms: Terms, *, clipped: bool = True) -> Encoded:
    """An update: head, other weights, buffers."""
    n = terms.head + terms.weights
    if clipped:
        trainable, buffers = shorten(values[:n], values[n:], terms)
    else:
        trainable, buffers = (
            values[:n],
            values[n:] / np.repeat([2.0**e for _, e in terms.units], [s for s, _ in terms.units]),
        )
    return encode(trainable[: terms.head], trainable[terms.head :], buffers, theta, terms)


def draw_head(rng: np.random.Generator, terms: Terms) -> np.ndarray:
    return rng.normal(size=terms.head)


def draw_updates(
    rng: np.random.Generator, terms: Terms, head: np.ndarray, number: int = 0, n: int | None = None
) -> np.ndarray:
    """Updates of lengths 10⁻⁵ to 1. In some rounds a head lies along θ, two heads are equal, or a head is zero."""
    size = terms.head + terms.weights + terms.buffers
    rows = rng.normal(size=(terms.clients, size)) * 10 ** rng.uniform(-5, 0, size=(terms.clients, 1))
    if number % 3 == 0:
        rows[0, : terms.head] = head * 10 ** rng.uniform(-5, 0)
    if number % 7 == 0:
        rows[1, : terms.head] = rows[2, : terms.head]
    if number % 11 == 0:
        rows[-1, : terms.head] = 0
    return rows
