"""One whole report, pinned: two operators whose versions differ in a single bit would refuse every client."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_examples import CLIPPED, SCALED, TERMS, WITH_BUFFERS, encode_update

from cosdefense.secure import report as written
from cosdefense.secure.encoding import encode_public_head
from cosdefense.secure.terms import Terms
from cosdefense.secure.ticket import ROUND_KEY, SIGNATURE, Ticket

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
VECTORS = [
    pytest.param(TERMS, "e110557dc27add263576dcfe740bf6c3b5caed77c0f94afcaa56fc6347e76b7c", id="no clip"),
    pytest.param(CLIPPED, "e1dc34edf5541b9b15d24e94a149f757ed9c8cf84f8fafd0cfc2814ab36ea5c6", id="clip"),
    pytest.param(WITH_BUFFERS, "1a6e5a78e605fbf8cf32058152731e6171e3b40eceff212e615c42260df216db", id="buffers"),
    pytest.param(SCALED, "d77f21218a2d3d7a58fb6138f839fd96886f5706c8db2148bd9500b441f4bce6", id="norm limit"),
]


@pytest.mark.parametrize(("terms", "expected"), VECTORS)
def test_a_whole_report(terms: Terms, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the seal, which HPKE draws at random, and the signature, which covers the seal."""
    draws = iter(range(1, 256))
    monkeypatch.setattr("cosdefense.secure.report.os.urandom", lambda n: bytes([next(draws)]) * n)
    size = terms.head + terms.weights + terms.buffers
    theta = encode_public_head(np.linspace(-1, 1, terms.head))
    encoded = encode_update(np.linspace(-0.5, 0.75, size), theta, terms)
    digests = (terms.digest, b"\x02" * 32, b"\x03" * 32)
    ticket = Ticket(7, b"\x01" * 32, b"\x04" * ROUND_KEY, *digests, b"\x05" * SIGNATURE)
    monkeypatch.setattr(written, "seal", lambda secret, public, info: b"")  # nobody has that round key
    found = written.write_report(encoded, theta, terms, ticket, KEY)
    parts = (found.node, found.claim.to_bytes(), found.words, found.rest, found.seed)
    assert hashlib.sha256(b"".join(map(bytes, parts))).hexdigest() == expected
