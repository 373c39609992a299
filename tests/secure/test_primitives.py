"""The primitives against their published vectors, and the streams made from them against pinned values."""

from __future__ import annotations

import hashlib
import hmac
import struct
from itertools import product

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.bindings._rust import openssl
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cosdefense.secure.streams import derive_seed, digest, stream
from cosdefense.secure.ticket import SEALED, RoundKey, seal, verifies


def test_hkdf_rfc_5869_case_1() -> None:
    key = HKDF(hashes.SHA256(), 42, bytes(range(13)), bytes(range(0xF0, 0xFA))).derive(b"\x0b" * 22)
    assert key.hex() == ("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")


def test_aes_256_ctr_nist_sp_800_38a() -> None:
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter, plain = bytes(range(0xF0, 0x100)), bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    written = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(plain)
    assert written.hex() == "601ec313775789a5b7a7f504bbf3d228"


def test_ed25519_rfc_8032_test_2() -> None:
    key = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    )
    public = key.public_key().public_bytes_raw()
    assert public.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    signature = key.sign(b"\x72")
    assert signature.hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert verifies(public, signature, b"\x72")
    assert not verifies(public, signature, b"\x73")
    assert not verifies(bytes(31), signature, b"\x72")


def test_hpke_rfc_9180_a_1_1() -> None:
    key = X25519PrivateKey.from_private_bytes(
        bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
    )
    enc = bytes.fromhex("37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431")
    ciphertext = bytes.fromhex(
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
    )
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
    # The vectors have associated data, which the public interface does not take.
    opened = openssl.hpke._decrypt_with_aad(suite, enc + ciphertext, key, b"Ode on a Grecian Urn", b"Count-0")
    assert opened == b"Beauty is truth, truth beauty"
    with pytest.raises(InvalidTag):
        openssl.hpke._decrypt_with_aad(suite, enc + ciphertext, key, b"Ode on a Grecian Vase", b"Count-0")


def test_a_seal_opens_with_its_key_and_purpose_alone() -> None:
    key = RoundKey()
    sealed = seal(b"\x07" * 32, key.public, b"this report")
    assert len(sealed) == SEALED
    assert key.unseal(sealed, b"this report") == b"\x07" * 32
    assert key.unseal(sealed, b"that report") is None
    assert RoundKey().unseal(sealed, b"this report") is None
    assert key.unseal(sealed[:-1], b"this report") is None
    assert key.unseal(b"", b"this report") is None


def test_digest_is_sha_256_of_labelled_parts_with_lengths() -> None:
    written = b"cosdefense secure 1 words\0" + struct.pack("<Q", 2) + b"ab" + struct.pack("<Q", 0)
    assert digest("words", b"ab", b"") == hashlib.sha256(written).digest()
    assert digest("words", b"a", b"b") != digest("words", b"ab", b"")


def test_stream_is_aes_ctr_under_hkdf() -> None:
    """HKDF by hand, from HMAC."""
    key = b"\x01" * 32
    extracted = hmac.digest(b"cosdefense secure 1", key, "sha256")
    own = hmac.digest(extracted, b"head\x01", "sha256")
    expected = Cipher(algorithms.AES(own), modes.CTR(bytes(16))).encryptor().update(bytes(50))
    assert stream(key, "head", 50) == expected
    assert stream(key, "head", 20) == expected[:20]
    assert stream(key, "proof", 50) != expected
    assert stream(key, "head", 0) == b""


def test_repeated_random_bytes_give_other_seeds_for_other_updates() -> None:
    contexts = product((b"u", b"v"), (b"1", b"2"), (b"\0", b"\1"))  # updates, headers, halves
    assert len({derive_seed(bytes(32), *context) for context in contexts}) == 8
