"""A ticket: the helper's signed permission for one round. It names the round's key, the terms and the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from .messages import Malformed, Reader, number
from .streams import KEY

SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)  # breaks only if both of its key exchanges do
ROUND_KEY, SIGNATURE = 1184 + 32, 64  # bytes
SEALED = 1088 + 32 + KEY + 16  # a seed: both encapsulations, the ciphertext, its tag
NOTHING = bytes(KEY)  # in place of a digest, where clients are sent nothing but the model
MAGIC = b"cosdefense ticket 1\0"


class RefusedTicket(ValueError):
    """A ticket that a client must not answer with an update."""


class RoundKey:
    """The helper's private key of one round. It is never written anywhere."""

    def __init__(self) -> None:
        lattice, curve = MLKEM768PrivateKey.generate(), X25519PrivateKey.generate()
        self.public = lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
        self._private = MLKEM768X25519PrivateKey(lattice, curve)

    def unseal(self, sealed: bytes, info: bytes) -> bytes | None:
        """What was sealed for this round and this purpose. None: nothing was."""
        try:
            return SUITE.decrypt(sealed, self._private, info)
        except (InvalidTag, ValueError):
            return None


def seal(secret: bytes, public: bytes, info: bytes) -> bytes:
    """Encrypt for whoever has the round's key, bound to `info` (RFC 9180, section 8.1)."""
    lattice = MLKEM768PublicKey.from_public_bytes(public[:1184])
    return SUITE.encrypt(
        secret, MLKEM768X25519PublicKey(lattice, X25519PublicKey.from_public_bytes(public[1184:])), info
    )


@dataclass(frozen=True)
class Ticket:
    """One round, as the helper signed it."""

    number: int
    nonce: bytes
    round_key: bytes
    terms: bytes  # digest
    model: bytes  # digest
    others: bytes  # digest of what else clients are sent
    signature: bytes = b""

    @property
    def body(self) -> bytes:
        return MAGIC + number(self.number) + self.nonce + self.round_key + self.terms + self.model + self.others

    def to_bytes(self) -> bytes:
        return self.body + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> Ticket:
        reader = Reader(data, "ticket")
        if reader.take(len(MAGIC)) != MAGIC:
            raise Malformed("ticket has an unknown version")
        ticket = cls(
            reader.number(), reader.take(KEY), reader.take(ROUND_KEY), reader.take(KEY), reader.take(KEY),
            reader.take(KEY), reader.take(SIGNATURE),
        )  # fmt: skip
        reader.end()
        return ticket

    def sign(self, identity: Ed25519PrivateKey) -> Ticket:
        return replace(self, signature=identity.sign(self.body))

    def check(self, identity: bytes, terms: bytes, model: bytes, others: bytes = NOTHING) -> None:
        """Refuse a ticket of another helper, or for other terms or another model than those that were received."""
        if not verifies(identity, self.signature, self.body):
            raise RefusedTicket("the ticket was not signed by this node's helper")
        if self.terms != terms:
            raise RefusedTicket("the ticket is for other terms than those that came with it")
        if self.model != model:
            raise RefusedTicket("the ticket is for another model than the one that came with it")
        if self.others != others:
            raise RefusedTicket("the ticket is for another configuration than the one that came with it")


def verifies(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of an Ed25519 key signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
