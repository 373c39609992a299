"""A client's report: its update in two halves, its claim, and the proof of the claim."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .encoding import Encoded
from .halves import (
    NUMBER,
    ROOTS,
    SLACK,
    Half,
    Numbers,
    ReportKeys,
    Shape,
    draw_blinding,
    expand_half,
    read_integers,
    split_roots,
)
from .messages import Bytes, Malformed, Reader, elements, number
from .proof import P, prove
from .sketch import sketch
from .squares import three_squares
from .statements import CLAIM, Claim, Squares, claim, statements
from .streams import KEY, derive_seed, digest
from .terms import Terms
from .ticket import SEALED, SIGNATURE, Ticket, seal, verifies

TRIES = 50  # one is enough, except where a sketch estimates a length far too high: once in a million


@dataclass(frozen=True, repr=False)
class SealedReport:
    """What the helper gets of a report: digests of the leader's half, and the seed of its own, sealed."""

    SIZE: ClassVar[int] = 4 * KEY + CLAIM + SEALED + SIGNATURE  # bytes

    node: bytes
    claim: Claim
    words: bytes
    rest: bytes
    seed: bytes
    sealed: bytes
    signature: bytes

    def keys(self, ticket: Ticket) -> ReportKeys:
        return ReportKeys(digest("header", ticket.to_bytes(), self.node), self.words, self.seed)

    def is_signed(self, transcript: bytes) -> bool:
        return verifies(self.node, self.signature, transcript + digest("sealed", self.sealed))

    def to_bytes(self) -> bytes:
        return self.node + self.claim.to_bytes() + self.words + self.rest + self.seed + self.sealed + self.signature

    @classmethod
    def read(cls, reader: Reader) -> SealedReport:
        return cls(
            reader.take(KEY), Claim(reader.number(), reader.number()), reader.take(KEY), reader.take(KEY),
            reader.take(KEY), reader.take(SEALED), reader.take(SIGNATURE),
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Report:
    """What the leader gets: its half, the claim, and what it passes on to the helper."""

    node: bytes
    claim: Claim
    words: Bytes
    rest: bytes
    seed: bytes  # digest of the helper's seed
    sealed: bytes
    signature: bytes

    def for_helper(self) -> SealedReport:
        words, rest = digest("words", self.words), digest("rest", self.rest)
        return SealedReport(self.node, self.claim, words, rest, self.seed, self.sealed, self.signature)

    def to_bytes(self) -> bytes:
        parts = (self.node, self.claim.to_bytes(), self.seed, self.sealed, self.signature)
        return b"".join((*parts, number(len(self.words)), self.words, number(len(self.rest)), self.rest))

    @classmethod
    def from_bytes(cls, data: Bytes, terms: Terms, *, with_cosine: bool) -> Report:
        """Read a report strictly. Its words stay where they are: they are not copied."""
        reader = Reader(data, "report")
        node, claimed, seed = reader.take(KEY), Claim(reader.number(), reader.number()), reader.take(KEY)
        sealed, signature = reader.take(SEALED), reader.take(SIGNATURE)
        report = cls(node, claimed, reader.view(), reader.sized(), seed, sealed, signature)
        reader.end()
        report.check_sizes(terms, with_cosine=with_cosine)
        return report

    @staticmethod
    def count_bytes(terms: Terms, *, with_cosine: bool) -> int:
        """The length of every report of a round."""
        rest = Shape.of(terms, with_cosine=with_cosine).rest_bytes
        return 2 * KEY + CLAIM + SEALED + SIGNATURE + 2 * 8 + terms.words * terms.ring.width + rest

    def check_sizes(self, terms: Terms, *, with_cosine: bool) -> None:
        rest = Shape.of(terms, with_cosine=with_cosine).rest_bytes
        needed = {"node": KEY, "words": terms.words * terms.ring.width, "rest": rest, "seed": KEY}
        for name, size in (needed | {"sealed": SEALED, "signature": SIGNATURE}).items():
            if len(getattr(self, name)) != size:
                raise Malformed(f"report: {name} needs {size} bytes, got {len(getattr(self, name))}")

    def leader_half(self, terms: Terms, *, with_cosine: bool) -> Half:
        """The leader's half. Raises `Malformed`."""
        self.check_sizes(terms, with_cosine=with_cosine)
        shape, reader = Shape.of(terms, with_cosine=with_cosine), Reader(self.rest, "rest of the report")
        seed = reader.take(KEY)
        counts = (shape.head, shape.weights, shape.buffers)
        parts = [read_integers(reader.take(NUMBER * count), NUMBER) for count in counts]
        roots = split_roots(read_integers(reader.take(SLACK * ROOTS * shape.statements), SLACK))
        proof = reader.elements(shape.proof)
        reader.end()
        numbers = Numbers(parts[0], parts[1], parts[2], roots)
        return Half(terms.ring.from_bytes(self.words), numbers, draw_blinding(seed, shape), proof)


class LimitExceeded(ValueError):
    """An update that is longer than the terms allow: it was not clipped."""


def write_report(
    encoded: Encoded, theta: Sequence[int], terms: Terms, ticket: Ticket, key: Ed25519PrivateKey
) -> Report:
    """Divide an encoded update into two halves, claim its score and prove the claim."""
    node = key.public_key().public_bytes_raw()
    header = digest("header", ticket.to_bytes(), node)
    claimed, shape = claim(encoded, theta, terms), Shape.of(terms, with_cosine=any(theta))
    content = digest("update", encoded.head.tobytes(), encoded.words.data.cast("B"))
    for _ in range(TRIES):
        ours, theirs = (derive_seed(os.urandom(KEY), content, header, bytes([i])) for i in (0, 1))
        other = expand_half(theirs, shape, terms)
        words = terms.ring.to_bytes(terms.ring.subtract(encoded.words, other.words))
        keys = ReportKeys(header, digest("words", words), digest("seed", theirs))
        numbers = _numbers(encoded, theta, terms, claimed, keys)
        rest = None if numbers is None else _write_rest(ours, numbers, other, shape, theta)
        if rest is not None:
            transcript = keys.transcript(claimed, digest("rest", rest))
            sealed = seal(theirs, ticket.round_key, transcript)
            signature = key.sign(transcript + digest("sealed", sealed))
            return Report(node, claimed, words, rest, keys.seed, sealed, signature)
    raise LimitExceeded(f"the update is longer than the terms allow: clip {terms.clip}, claim {claimed}")


def _numbers(encoded: Encoded, theta: Sequence[int], terms: Terms, claimed: Claim, keys: ReportKeys) -> Numbers | None:
    """Head, sketches and slacks. None: by these sketches the update is too long."""
    head, parts = encoded.head.tolist(), []
    weights, buffers = np.split(encoded.words, [terms.weights])
    for name, words, size in zip(("weights", "buffers"), (weights, buffers), terms.sketches, strict=True):
        found = sketch(words, keys.sketch_key(name), terms.ring) if size else terms.ring.zeros(0)
        parts.append(terms.ring.to_signed(found).tolist())
    product = sum(map(int.__mul__, theta, head))
    squares = Squares(*(sum(v * v for v in values) for values in (head, [product], *parts)))
    slacks = [s.constant + s.linear_part(squares) for s in statements(claimed, theta, terms)]
    return (
        None
        if min(slacks, default=0) < 0
        else Numbers(head, parts[0], parts[1], [three_squares(slack) for slack in slacks])
    )


def _write_rest(seed: bytes, numbers: Numbers, other: Half, shape: Shape, theta: Sequence[int]) -> bytes | None:
    """The leader's half without its words. None: a difference does not fit its field (once in 2**70 reports)."""
    blinding = [(a + b) % P for a, b in zip(draw_blinding(seed, shape), other.blinding, strict=True)]
    proof = prove(shape.arrange(numbers, theta), blinding)
    pairs = [
        (numbers.head, other.numbers.head, NUMBER),
        (numbers.weights, other.numbers.weights, NUMBER),
        (numbers.buffers, other.numbers.buffers, NUMBER),
        *((a, b, SLACK) for a, b in zip(numbers.roots, other.numbers.roots, strict=True)),
    ]
    try:
        written = [
            (a - b).to_bytes(width, "little", signed=True)
            for values, others, width in pairs
            for a, b in zip(values, others, strict=True)
        ]
    except OverflowError:
        return None
    return seed + b"".join(written) + elements([(a - b) % P for a, b in zip(proof, other.proof, strict=True)])
