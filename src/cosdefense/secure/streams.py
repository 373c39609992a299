"""Digests and pseudo-random streams, from SHA-256, HKDF and AES-256-CTR."""

from __future__ import annotations

import hashlib
import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PROTOCOL = b"cosdefense secure 1"
KEY = 32  # bytes of a key, a seed and a digest


def digest(label: str, *parts: bytes | bytearray | memoryview) -> bytes:
    """SHA-256 of the parts, each with its length, for one purpose."""
    hashed = hashlib.sha256(PROTOCOL + b" " + label.encode() + b"\0")
    for part in parts:
        hashed.update(struct.pack("<Q", len(part)))
        hashed.update(part)
    return hashed.digest()


def stream(key: bytes, label: str, n: int) -> bytes:
    """The first `n` bytes of the stream of this key and purpose. Labels keep streams of one key apart."""
    if n == 0:
        return b""
    own = HKDF(hashes.SHA256(), KEY, PROTOCOL, label.encode()).derive(key)
    # The counter may start at zero: every (key, label) has an AES key of its own.
    return Cipher(algorithms.AES(own), modes.CTR(bytes(16))).encryptor().update(bytes(n))


def derive_seed(entropy: bytes, *context: bytes) -> bytes:
    """A seed that depends on fresh random bytes and on what it will hide.

    A virtual machine that is restored from a snapshot repeats its random bytes. Two different updates must not be
    masked by the same stream even then.
    """
    return HKDF(hashes.SHA256(), KEY, PROTOCOL, digest("seed context", *context)).derive(entropy)
