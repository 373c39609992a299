"""Makes the keys of helpers, leaders and nodes, as files of their own that nobody else can read."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCKS = datetime.timedelta(hours=1)  # by how much the clocks of two computers may differ


def make_signing_key(path: Path) -> str:
    """Write a new Ed25519 key. Returns the public key in hexadecimal."""
    key = Ed25519PrivateKey.generate()
    _write_secret(path, key)
    return key.public_key().public_bytes_raw().hex()


def make_certificate(path: Path, host: str, days: int, *, server: bool) -> None:
    """Write a TLS certificate that signs itself, and its private key beside it, with the ending ".key".

    Whoever is given the certificate trusts this one alone: there is no authority that could issue another.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_to_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write_secret(path.with_suffix(".key"), key)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


def _to_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> None:
    """Only its owner can read it. A file that exists is never replaced: its key would be lost."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
