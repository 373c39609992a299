"""Makes a certificate authority, a server certificate and node keys for tests. Not for production."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = datetime.timedelta(days=7)


@dataclass(frozen=True)
class Certificates:
    """Paths of the files."""

    ca: Path
    server: Path
    server_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a server certificate for localhost, 127.0.0.1 and 127.0.0.2."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name, server_name = _make_name("example authority"), _make_name("localhost")
    ca = _build_certificate(ca_name, ca_name, ca_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    ca = ca.add_extension(usage, critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "127.0.0.2")]
    names = [x509.DNSName("localhost"), *addresses]
    server = _build_certificate(server_name, ca_name, server_key).add_extension(
        x509.SubjectAlternativeName(names), False
    )
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = server.add_extension(signer, critical=False)
    files = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    files.ca.write_bytes(ca.sign(ca_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    files.server.write_bytes(server.sign(ca_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    _write_secret(files.server_key, server_key, serialization.PrivateFormat.PKCS8)
    return files  # the authority's key is not written: it signs nothing else


def make_node_key(path: Path) -> Path:
    """As `ssh-keygen -t ecdsa -b 384`: the private key at `path`, the public key beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key, serialization.PrivateFormat.OpenSSH)
    encoding, kind = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(encoding, kind) + b"\n")
    return path


def _build_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + LIFETIME)
    )


def _make_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, kind: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))
