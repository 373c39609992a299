"""The helper as a process of its own behind mutual TLS: real sockets, real certificates, SIGKILL."""

from __future__ import annotations

import datetime
import gzip
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from secure_examples import TERMS as USUAL
from secure_examples import Example, draw_head, draw_updates, encode_update, request

from cosdefense.secure.exchange import Outcome, Reports
from cosdefense.secure.helper_config import BadSettings, HelperConfig
from cosdefense.secure.helper_state import HelperState
from cosdefense.secure.leader import HelperUnreachable, Opened, open_round
from cosdefense.secure.policy import Refused
from cosdefense.secure.remote_helper import RemoteHelper
from cosdefense.secure.report import Report

DAY = datetime.timedelta(days=1)
SERVE = "import sys; from pathlib import Path; from cosdefense.secure.service import serve; serve(Path(sys.argv[1]))"
TERMS = replace(USUAL, threshold="mad", deviations=100.0)  # accepts everybody
HEAD = draw_head(np.random.default_rng(0), TERMS)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> None:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)


@dataclass
class Authority:
    """A private certificate authority."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        self.path = self.folder / f"{self.name}.crt"
        extension = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self.subject, self.key.public_key(), 30 * DAY).add_extension(extension, critical=True)
        self.path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, valid: datetime.timedelta = 10 * DAY) -> Path:
        """A certificate for 127.0.0.1, with its key beside it."""
        key, path = ec.generate_private_key(ec.SECP256R1()), self.folder / f"{name}.crt"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        builder = self._builder(subject, key.public_key(), valid).add_extension(names, critical=False)
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        write_key(path.with_suffix(".key"), key)
        return path

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, valid: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self.subject, subject, public, x509.random_serial_number())
        return builder.not_valid_before(now - 5 * DAY).not_valid_after(now + valid)


@dataclass
class Site:
    """A helper's folder, its nodes' keys, and the process if it runs."""

    folder: Path
    keys: list[Ed25519PrivateKey]
    process: subprocess.Popen[bytes] | None = None
    connections: list[RemoteHelper] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[bytes, ...]:
        return tuple(key.public_key().public_bytes_raw() for key in self.keys)

    @property
    def config(self) -> HelperConfig:
        return HelperConfig.load(self.folder / "helper.toml")

    @property
    def address(self) -> str:
        return f"https://localhost:{self.config.port}"

    def connect(
        self, certificate: str = "leader", authority: str = "helper-ca", triples: Path | None = None
    ) -> RemoteHelper:
        own, trusted = self.folder / f"{certificate}.crt", self.folder / f"{authority}.crt"
        helper = RemoteHelper(self.address, own, trusted, timeout=300.0, retry_seconds=0.0, triples=triples)
        self.connections.append(helper)
        return self.connections[-1]

    def start(self) -> None:
        with (self.folder / "log.txt").open("ab") as log:
            command = [sys.executable, "-c", SERVE, str(self.folder / "helper.toml")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + 300
        while True:
            assert self.process.poll() is None, (self.folder / "log.txt").read_text()
            assert time.monotonic() < end, "the helper did not start"
            try:
                socket.create_connection(("127.0.0.1", self.config.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def build_site(folder: Path) -> Site:
    """Keys, certificates and settings of a helper that does not run yet."""
    keys = [Ed25519PrivateKey.generate() for _ in range(5)]
    leader, helper, other = (Authority(folder, name) for name in ("leader-ca", "helper-ca", "other-ca"))
    helper.issue("helper")
    leader.issue("leader")
    leader.issue("expired", -1 * DAY)
    other.issue("stranger")
    write_key(folder / "identity.pem", Ed25519PrivateKey.generate())
    lines = [f'node{i} = "{key.public_key().public_bytes_raw().hex()}"' for i, key in enumerate(keys)]
    (folder / "nodes.toml").write_text("\n".join(lines))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "helper.toml").write_text(
        f'listen = "127.0.0.1:{port}"\ncertificate = "helper.crt"\nleader_authority = "leader-ca.crt"\n'
        'identity = "identity.pem"\nroster = "nodes.toml"\nstate = "helper.state"\nsmallest = 3\n'
    )
    return Site(folder, keys)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = build_site(tmp_path_factory.mktemp("helper"))
    found.start()
    try:
        yield found
    finally:
        found.kill()
        for connection in found.connections:
            connection.close()


def begin(site: Site, helper: RemoteHelper, model: int) -> tuple[Example, list[Report]]:
    """A ticket for a model, and the reports of its five clients."""
    ticket = helper.issue_ticket(request(TERMS, HEAD, bytes([model] * 32)))
    identity = site.config.read_identity().public_key().public_bytes_raw()
    ticket.check(identity, TERMS.digest, ticket.model)
    theta = request(TERMS, HEAD).theta
    example = Example(TERMS, theta, site.keys, helper, ticket)  # type: ignore[arg-type]
    rows = draw_updates(np.random.default_rng(13), TERMS, HEAD, 1)
    return example, [example.write(encode_update(row, theta, TERMS), i) for i, row in enumerate(rows)]


def play(example: Example, reports: list[Report], helper: RemoteHelper) -> Opened:
    return open_round(reports, example.ticket, TERMS, example.theta, None, helper)


@pytest.mark.slow
def test_rounds_over_the_network_give_the_same_sums(site: Site) -> None:
    helper = site.connect()
    example, reports = begin(site, helper, 1)
    opened = play(example, reports, helper)
    assert set(opened.outcomes) == {Outcome.VALID}
    assert opened.words is not None
    chosen = [
        encode_update(row, example.theta, TERMS) for row in draw_updates(np.random.default_rng(13), TERMS, HEAD, 1)
    ]
    weights = opened.decision.weights
    assert list(opened.head) == [
        sum(w * int(update.head[j]) for w, update in zip(weights, chosen, strict=True)) for j in range(TERMS.head)
    ]
    with pytest.raises(Refused, match="not the current one"):
        helper.check_reports(Reports(99, ()))
    example, reports = begin(site, helper, 2)
    bad = [replace(report, words=bytes(len(report.words))) for report in reports]
    assert set(play(example, bad, helper).outcomes) == {Outcome.UNSIGNED}


@pytest.mark.slow
def test_nobody_else_can_connect(site: Site) -> None:
    for certificate in ("stranger", "expired"):
        with pytest.raises(HelperUnreachable):
            site.connect(certificate).issue_ticket(request(TERMS, HEAD))
    authority = str(site.folder / "helper-ca.crt")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{site.address}/health", verify=ssl.create_default_context(cafile=authority), trust_env=False)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://localhost:{site.config.port}/health", trust_env=False)
    with pytest.raises(HelperUnreachable):  # a helper that another authority vouches for
        site.connect(authority="other-ca").issue_ticket(request(TERMS, HEAD))
    (site.folder / "none.crt").touch()
    with pytest.raises(FileNotFoundError, match=r"none\.key is needed"):
        site.connect("none")
    with pytest.raises(ValueError, match="https"):
        RemoteHelper("http://localhost:1", site.folder / "leader.crt", site.folder / "helper-ca.crt")


@pytest.mark.slow
def test_any_bytes_are_refused_and_the_helper_goes_on(site: Site) -> None:
    helper = site.connect()
    rng = np.random.default_rng(0)
    for path in ("/ticket", "/reports", "/settle"):
        for n in (0, 1, 100, 10_000):
            with pytest.raises(Refused):
                helper._post(path, rng.bytes(n), 1 << 16)
    with pytest.raises(HelperUnreachable, match="status 404"):
        helper._post("/other", b"", 1 << 16)
    example, reports = begin(site, helper, 3)
    assert play(example, reports, helper).words is not None


@pytest.mark.slow
def test_a_killed_helper_never_gives_two_sums_for_one_ticket(site: Site) -> None:
    for step, name in enumerate(("ticket", "reports", "settle")):
        helper = site.connect()
        example, reports = begin(site, helper, 10 + step)
        shown = Reports(example.ticket.number, tuple(report.for_helper() for report in reports))
        if name == "reports":
            helper.check_reports(shown)
        if name == "settle":
            assert play(example, reports, helper).words is not None
        before = HelperState.load(site.config.state)
        site.kill()
        with pytest.raises(HelperUnreachable):
            play(example, reports, helper)
        site.start()
        with pytest.raises(Refused, match="not the current one"):
            helper.check_reports(shown)
        assert HelperState.load(site.config.state) == before
        assert before.issued == example.ticket.number
        assert before.settled == (example.ticket.number if name == "settle" else before.settled)
        again, reports = begin(site, site.connect(), 20 + step)
        assert again.ticket.number == example.ticket.number + 1


@pytest.mark.slow
def test_logs_and_files_hold_no_secret(site: Site) -> None:
    helper = site.connect()
    example, reports = begin(site, helper, 30)
    assert play(example, reports, helper).words is not None
    written = b"".join(path.read_bytes() for path in site.folder.iterdir() if path.suffix in (".txt", ".state"))
    for report in reports:
        for secret in (report.words, report.rest[:32], report.sealed, report.seed):
            assert secret not in written
            assert secret.hex()[:32].encode() not in written


@pytest.mark.slow
def test_a_request_is_repeated_until_the_helper_is_back(site: Site) -> None:
    certificates = site.folder / "leader.crt", site.folder / "helper-ca.crt"
    helper = RemoteHelper(site.address, *certificates, timeout=300.0, retry_seconds=300.0)
    site.connections.append(helper)
    before = helper.issue_ticket(request(TERMS, HEAD)).number
    site.kill()
    restart = threading.Timer(0.2, site.start)
    restart.start()
    assert helper.issue_ticket(request(TERMS, HEAD)).number == before + 1
    restart.join()


@pytest.mark.slow
def test_a_state_belongs_to_one_helper(site: Site) -> None:
    command = [sys.executable, "-m", "cosdefense", "helper", "serve", str(site.folder / "helper.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert "helper.state is in use by another helper" in done.stderr


class Endless(httpx.SyncByteStream):
    """An answer that never ends, or that would be a gigabyte if it were decompressed."""

    def __init__(self, piece: bytes) -> None:
        self.piece, self.n_sent = piece, 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.n_sent += len(self.piece)
            yield self.piece


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_helper_cannot_fill_the_leaders_memory(site: Site, encoding: str) -> None:
    helper, stream = site.connect(), Endless(gzip.compress(bytes(1 << 20)))
    headers = {"content-encoding": encoding}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=stream))
    helper._client = httpx.Client(transport=transport, base_url=site.address)
    with pytest.raises(HelperUnreachable, match="longer than 65536 bytes"):
        helper.issue_ticket(request(TERMS, HEAD))
    assert stream.n_sent < 1 << 17


def test_a_helper_that_needs_longer_than_the_timeout_is_asked_again(site: Site) -> None:
    """It answers the same request from memory then."""
    helper = RemoteHelper(site.address, site.folder / "leader.crt", site.folder / "helper-ca.crt", retry_seconds=0.9)
    real, asked = helper._client, list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if len(asked) == 1:
            time.sleep(0.6)  # more than is left of the time for repetitions
            raise httpx.ReadTimeout("late")
        return httpx.Response(200, stream=httpx.ByteStream(ticket))

    with real:
        ticket = real.post("/ticket", content=request(TERMS, HEAD).to_bytes()).content
    with httpx.Client(transport=httpx.MockTransport(answer), base_url=site.address) as helper._client:
        assert helper.issue_ticket(request(TERMS, HEAD)).to_bytes() == ticket
    assert asked == ["/ticket", "/ticket"]


def test_settings(site: Site) -> None:
    good = (site.folder / "helper.toml").read_text()
    bad = site.folder / "bad.toml"
    for text, needed in (
        (good + "port = 1\n", "'port' is unknown"),
        (good.replace("smallest = 3", "smallest = 0"), "smallest must be a whole number from 1"),
        (good.replace('roster = "nodes.toml"', ""), "roster must be a text"),
        (good.replace("127.0.0.1:", "127.0.0.1-"), "listen must be"),
        ("\0", "cannot be read"),
    ):
        bad.write_text(text)
        with pytest.raises(BadSettings, match=needed):
            HelperConfig.load(bad)
    with pytest.raises(BadSettings, match="cannot be read"):
        HelperConfig.load(site.folder / "missing.toml")
    config = site.config
    for text, needed in (
        ('a = "zz"', "hexadecimal"),
        ("a = 1", "hexadecimal"),
        ('a = "00"', "32 bytes"),
        ("[", "read"),
    ):
        (site.folder / "bad-nodes.toml").write_text(text)
        with pytest.raises(BadSettings, match=needed):
            replace(config, roster=site.folder / "bad-nodes.toml").read_roster()
    assert list(config.read_roster()) == list(site.nodes)
    loose = site.folder / "loose.pem"
    loose.write_bytes(config.identity.read_bytes())
    loose.chmod(0o644)
    with pytest.raises(BadSettings, match="chmod 600"):
        replace(config, identity=loose).read_identity()
    with pytest.raises(BadSettings, match="Ed25519"):
        replace(config, identity=site.folder / "leader.key").read_identity()
    with pytest.raises(BadSettings, match="not a readable"):
        replace(config, identity=site.folder / "none.pem").read_identity()
