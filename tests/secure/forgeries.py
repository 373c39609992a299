"""Malicious clients: reports that claim what is not true, or belong elsewhere. None of them may be counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_examples import Example, encode_update

from cosdefense.secure.encoding import Encoded
from cosdefense.secure.halves import NUMBER, SLACK, Numbers, ReportKeys, Shape, draw_blinding, expand_half
from cosdefense.secure.messages import elements
from cosdefense.secure.proof import ELEMENT, P, prove
from cosdefense.secure.report import Report
from cosdefense.secure.sketch import sketch
from cosdefense.secure.squares import three_squares
from cosdefense.secure.statements import Claim, Squares, claim, statements
from cosdefense.secure.streams import digest
from cosdefense.secure.terms import Terms
from cosdefense.secure.ticket import seal

NAMES = ("weights", "buffers")
Edit = Callable[[list[int]], list[int]]


def same(values: list[int]) -> list[int]:
    return values


def write_forged(
    example: Example,
    i: int,
    encoded: Encoded,
    *,
    claimed: Claim | None = None,
    weights: Edit = same,
    buffers: Edit = same,
    roots: Sequence[int] | None = None,
    proof: Edit = same,
    header: bytes | None = None,
    head: list[int] | None = None,
    seed: bytes | None = None,
) -> Report:
    """A report like an honest one, except for what is given. Slacks that cannot be proven get the roots given."""
    terms, theta, key = example.terms, example.theta, example.keys[i]
    node = key.public_key().public_bytes_raw()
    header = header or digest("header", example.ticket.to_bytes(), node)
    claimed, shape = claimed or claim(encoded, theta, terms), Shape.of(terms, with_cosine=any(theta))
    ours, theirs = os.urandom(32), seed or os.urandom(32)
    other = expand_half(theirs, shape, terms)
    words = terms.ring.to_bytes(terms.ring.subtract(encoded.words, other.words))
    keys = ReportKeys(header, digest("words", words), digest("seed", theirs))
    parts = np.split(encoded.words, [terms.weights])
    sketched = [
        edit(terms.ring.to_signed(sketch(part, keys.sketch_key(name), terms.ring)).tolist() if size else [])
        for name, part, size, edit in zip(
            ("weights", "buffers"), parts, terms.sketches, (weights, buffers), strict=True
        )
    ]
    head = head or encoded.head.tolist()
    product = sum(map(int.__mul__, theta, head))
    sums = [sum(v * v for v in part) for part in (head, *sketched)]
    squares = Squares(sums[0], product**2, sums[1], sums[2])
    slacks = [s.constant + s.linear_part(squares) for s in statements(claimed, theta, terms)]
    found = [list(roots or (0, 0, 0)) if slack < 0 else list(three_squares(slack)) for slack in slacks]
    numbers = Numbers(head, sketched[0], sketched[1], found)
    blinding = [(a + b) % P for a, b in zip(draw_blinding(ours, shape), other.blinding, strict=True)]
    values = proof(prove(shape.arrange(numbers, theta), blinding))
    pairs = (
        (numbers.head, other.numbers.head, NUMBER),
        (numbers.weights, other.numbers.weights, NUMBER),
        (numbers.buffers, other.numbers.buffers, NUMBER),
        *((a, b, SLACK) for a, b in zip(numbers.roots, other.numbers.roots, strict=True)),
    )
    # Differences that do not fit are cut off: numbers near the limit of the format are wrong in another way then.
    written = b"".join(
        ((a - b) % (1 << 8 * width)).to_bytes(width, "little")
        for mine, others, width in pairs
        for a, b in zip(mine, others, strict=True)
    )
    rest = ours + written + elements([(a - b) % P for a, b in zip(values, other.proof, strict=True)])
    return sign(Report(node, claimed, words, rest, keys.seed, b"", b""), header, theirs, example, key)


def sign(report: Report, header: bytes, seed: bytes, example: Example, key: Ed25519PrivateKey) -> Report:
    """Seal and sign whatever the report holds now."""
    keys = ReportKeys(header, digest("words", report.words), report.seed)
    transcript = keys.transcript(report.claim, digest("rest", report.rest))
    sealed = seal(seed, example.ticket.round_key, transcript)
    return replace(report, sealed=sealed, signature=key.sign(transcript + digest("sealed", sealed)))


def too_long(example: Example, update: np.ndarray, length: float) -> Encoded:
    """An update of this many clips that was not clipped."""
    terms, n = example.terms, example.terms.head + example.terms.weights
    values = update.copy()
    values[: terms.head] *= 1e-3
    values[terms.head : n] *= length * (terms.clip or 1) / np.linalg.norm(values[terms.head : n])
    return encode_update(values, example.theta, terms, clipped=False)


def with_words(encoded: Encoded, at: Sequence[int], value: int, terms: Terms) -> Encoded:
    words = encoded.words.copy()
    words[list(at)] = terms.ring.from_signed(np.array([value] * len(at), np.int64))
    return replace(encoded, words=words)


def with_part(report: Report, part: str, data: bytes) -> Report:
    changes: dict[str, Any] = {part: data}
    return replace(report, **changes)


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(changed)


Forgery = Callable[[Example, int, np.ndarray, np.random.Generator], Report]


def forgeries() -> dict[str, Forgery]:
    """Every kind by name: a report of client i, whose honest update is given."""

    def honest(e: Example, u: np.ndarray) -> Encoded:
        return encode_update(u, e.theta, e.terms)

    def claiming(change: Callable[[int], int], roots: Sequence[int] | None = None) -> Forgery:
        def forge(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
            encoded = honest(e, u)
            truth = claim(encoded, e.theta, e.terms)
            return write_forged(e, i, encoded, claimed=replace(truth, cosine=change(truth.cosine)), roots=roots)

        return forge

    def proving(change: Callable[[list[int], Shape, np.random.Generator], list[int]], shift: int = 0) -> Forgery:
        def forge(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
            encoded, shape = honest(e, u), Shape.of(e.terms, with_cosine=True)
            truth = claim(encoded, e.theta, e.terms)
            claimed = replace(truth, cosine=truth.cosine + shift)
            return write_forged(e, i, encoded, claimed=claimed, proof=lambda values: change(values, shape, rng))

        return forge

    def one_value(values: list[int], shape: Shape, rng: np.random.Generator) -> list[int]:
        at = int(rng.integers(len(values)))
        return [(v + (j == at)) % P for j, v in enumerate(values)]

    def fitting_sum(values: list[int], shape: Shape, rng: np.random.Generator) -> list[int]:
        """Make the false statement true by another value for the product, and the two slacks."""
        found = list(values)
        first = shape.n_rows - shape.statements
        found[first] = found[first + 1] = found[shape.n_rows] = 1
        return found

    def any_values(values: list[int], shape: Shape, rng: np.random.Generator) -> list[int]:
        return [int.from_bytes(rng.bytes(ELEMENT), "little") % P for _ in values]

    def long(length: float, edit: Edit = same) -> Forgery:
        return lambda e, i, u, rng: write_forged(e, i, too_long(e, u, length), weights=edit)

    def head_of(factor: int) -> Forgery:
        def forge(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
            encoded = honest(e, u)
            return write_forged(e, i, encoded, head=[v * factor for v in encoded.head.tolist()])

        return forge

    def wrapping(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
        at = rng.choice(e.terms.weights, 2, replace=False)
        return write_forged(e, i, with_words(honest(e, u), at.tolist(), 1 << e.terms.ring.bits - 1, e.terms))

    def flipped(part: str) -> Forgery:
        def forge(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
            report = e.write(honest(e, u), i)
            data = getattr(report, part)
            return with_part(report, part, flip(data, int(rng.integers(8 * len(data)))))

        return forge

    def resigned(part: str) -> Forgery:
        """A changed half, signed and sealed again: only the proof can tell."""

        def forge(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
            seed = os.urandom(32)
            report = write_forged(e, i, honest(e, u), seed=seed)
            data = getattr(report, part)
            changed = with_part(report, part, flip(data, int(rng.integers(8 * len(data)))))
            return sign(changed, digest("header", e.ticket.to_bytes(), report.node), seed, e, e.keys[i])

        return forge

    def other_seed(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
        report = e.write(honest(e, u), i)
        return sign(report, digest("header", e.ticket.to_bytes(), report.node), os.urandom(32), e, e.keys[i])

    def other_header(what: Callable[[Example, int], bytes]) -> Forgery:
        return lambda e, i, u, rng: write_forged(e, i, honest(e, u), header=what(e, i))

    def other_ticket(e: Example, i: int) -> bytes:
        ticket = replace(e.ticket, nonce=os.urandom(32))
        return digest("header", ticket.to_bytes(), e.keys[i].public_key().public_bytes_raw())

    def other_node(e: Example, i: int) -> bytes:
        return digest("header", e.ticket.to_bytes(), e.keys[i - 1].public_key().public_bytes_raw())

    def other_claim(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
        report = e.write(honest(e, u), i)
        return replace(report, claim=replace(report.claim, cosine=report.claim.cosine // 2))

    def stranger(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
        keys = list(e.keys)
        keys[i] = Ed25519PrivateKey.generate()
        return replace(e, keys=keys).write(honest(e, u), i)

    def not_an_element(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
        report = write_forged(e, i, honest(e, u))
        return replace(report, rest=report.rest[:-ELEMENT] + b"\xff" * ELEMENT)

    def resized(part: str, change: Callable[[bytes], bytes]) -> Forgery:
        def forge(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
            report = e.write(honest(e, u), i)
            return with_part(report, part, change(getattr(report, part)))

        return forge

    def long_buffers(edit: Edit = same) -> Forgery:
        def forge(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
            at = list(range(e.terms.weights, e.terms.words))
            value = round(1000 * 2.0**e.terms.buffer_fraction)
            return write_forged(e, i, with_words(honest(e, u), at, value, e.terms), buffers=edit)

        return forge

    def shorter_claim(e: Example, i: int, u: np.ndarray, rng: np.random.Generator) -> Report:
        encoded = honest(e, u * 100)
        truth = claim(encoded, e.theta, e.terms)
        return write_forged(e, i, encoded, claimed=replace(truth, length=max(1, truth.length // 10)))

    found = {
        "claim one unit too high": claiming(lambda q: q + 1),
        "claim one unit too low": claiming(lambda q: abs(q - 1)),
        "claim of zero": claiming(lambda q: 0),
        "claim of one": claiming(lambda q: 1 << 24),
        "claim beyond one": claiming(lambda q: 1 << 30),
        "slacks as large as the format": claiming(lambda q: q // 2, (2**190, 2**190, 2**190)),
        "slacks of one": claiming(lambda q: q // 2, (1, 1, 1)),
        "one value of the proof": proving(one_value),
        "sums that fit a false claim": proving(fitting_sum, 1000),
        "any proof": proving(any_values),
        "ten times too long": long(10),
        "ten times too long, shorter sketch": long(10, lambda y: [v // 10 for v in y]),
        "ten times too long, sketch of zeros": long(10, lambda y: [0] * len(y)),
        "another sketch": long(0.5, lambda y: [y[0] + 1, *y[1:]]),
        "sketch off by the modulus": long(10, lambda y: [v - (1 << 32) if v > 0 else v + (1 << 32) for v in y]),
        "a pair of words that wraps": wrapping,
        "head of a thousand lengths": head_of(10**7),
        "head of 120 bits": head_of(2**80),
        "flipped bit in the words": flipped("words"),
        "flipped bit in the rest": flipped("rest"),
        "flipped bit in the seal": flipped("sealed"),
        "flipped bit in the signature": flipped("signature"),
        "flipped bit in the seed's digest": flipped("seed"),
        "changed words, signed again": resigned("words"),
        "changed rest, signed again": resigned("rest"),
        "another seed": other_seed,
        "another ticket": other_header(other_ticket),
        "another node's header": other_header(other_node),
        "another claim than signed": other_claim,
        "a node that was not asked": stranger,
        "a number that is no element": not_an_element,
        "truncated words": resized("words", lambda data: data[:-1]),
        "longer rest": resized("rest", lambda data: data + b"\0"),
        "empty seal": resized("sealed", lambda data: b""),
        "buffers too long": long_buffers(),
        "buffers too long, sketch of zeros": long_buffers(lambda y: [0] * len(y)),
    }
    return found | {"length claimed too short": shorter_claim}
