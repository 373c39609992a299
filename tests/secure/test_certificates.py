"""Certificates of `cosdefense helper`: each server trusts the one that it was given, and none that is made with it."""

from __future__ import annotations

import datetime
import shutil
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from cosdefense.secure.helper_config import HelperConfig
from cosdefense.secure.keys import make_certificate, make_signing_key
from cosdefense.secure.policy import Policy
from cosdefense.secure.remote_helper import make_context
from cosdefense.secure.service import configure_server

DAY = datetime.timedelta(days=1)


@pytest.fixture
def config(tmp_path: Path) -> HelperConfig:
    make_certificate(tmp_path / "helper.crt", "localhost", 3, server=True)
    make_certificate(tmp_path / "leader.crt", "leader", 3, server=False)
    make_signing_key(tmp_path / "identity.pem")
    (tmp_path / "nodes.toml").touch()
    names = ("certificate", "leader_authority", "identity", "roster", "state")
    files = ("helper.crt", "leader.crt", "identity.pem", "nodes.toml", "helper.state")
    paths = {name: tmp_path / file for name, file in zip(names, files, strict=True)}
    return HelperConfig("localhost", 1, **paths, policy=Policy())


def make_child(issuer: Path, path: Path) -> Path:
    """A certificate signed with the key of another, which is no authority, and sent together with it."""
    parent = x509.load_pem_x509_certificate(issuer.read_bytes())
    signer = load_pem_private_key(issuer.with_suffix(".key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "child")])
    builder = x509.CertificateBuilder(parent.subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    signed = builder.add_extension(names, critical=False).sign(signer, hashes.SHA256())
    path.write_bytes(signed.public_bytes(Encoding.PEM) + issuer.read_bytes())
    path.with_suffix(".key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def shake_hands(config: HelperConfig, client: ssl.SSLContext) -> None:
    """A whole handshake in memory, and one byte from the helper: it has accepted the leader's certificate by then."""
    server = configure_server(config).ssl
    assert server is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done = set[ssl.SSLObject]()
    for side in (ours, theirs, ours, theirs):
        try:
            side.do_handshake()
            done.add(side)
        except ssl.SSLWantReadError:
            continue
    assert done == {ours, theirs}
    theirs.write(b"1")
    assert ours.read(1) == b"1"


def test_leader_and_helper_know_each_other(config: HelperConfig) -> None:
    shake_hands(config, make_context(config.leader_authority, config.certificate))


def test_a_certificate_made_with_that_of_the_leader_is_not_the_leaders(config: HelperConfig, tmp_path: Path) -> None:
    for issuer in (config.leader_authority, config.certificate):
        child = make_child(issuer, tmp_path / "child.crt")
        with pytest.raises(ssl.SSLError):
            shake_hands(config, make_context(child, config.certificate))
    with pytest.raises(ssl.SSLError):  # nor is the helper's own
        shake_hands(config, make_context(config.certificate, config.certificate))


def test_a_certificate_made_with_that_of_the_helper_is_not_the_helpers(config: HelperConfig, tmp_path: Path) -> None:
    for issuer in (config.certificate, config.leader_authority):
        false = replace(config, certificate=make_child(issuer, tmp_path / "false.crt"))
        with pytest.raises(ssl.SSLError):
            shake_hands(false, make_context(config.leader_authority, config.certificate))


def test_a_key_of_another_certificate_is_refused_at_the_start(config: HelperConfig) -> None:
    shutil.copy(config.leader_authority.with_suffix(".key"), config.certificate_key)
    with pytest.raises(ValueError, match="not the key of its certificate"):
        configure_server(config)
