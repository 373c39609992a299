"""The leader's end of the connection to a helper on another computer."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx

from .comparison import Masked, Products, Projected, Weights
from .exchange import TOTAL, Checks, Reports, Settled, TicketRequest
from .leader import HelperUnreachable
from .messages import Malformed
from .policy import Refused
from .projection import SIZE
from .terms import MEAN_ROWS
from .ticket import Ticket
from .triple_files import TripleFile

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds between two requests


class RemoteHelper:
    """A helper behind HTTPS, with the same steps as `Helper` and `ComparingHelper`.

    A request that is not answered is repeated, with pauses. That is safe: the helper gives the same answer to the same
    reports and to the same settlement, and a second ticket abandons the first.

    Args:
        address: Such as "https://helper.example.org:8443".
        certificate: The leader's TLS certificate. Its private key lies beside it, with the ending ".key".
        helper_certificate: The helper's TLS certificate, or the authority that signed it.
        timeout: Seconds to wait for an answer. A helper needs about 0.1 for each report of a ResNet-18.
        retry_seconds: How long a request is repeated after it failed, before the round is given up.
        triples: The leader's file of a dealer's triples, for rules that compare clients.
    """

    def __init__(
        self,
        address: str,
        certificate: Path | str,
        helper_certificate: Path | str,
        *,
        timeout: float = 60.0,
        retry_seconds: float = 60.0,
        triples: Path | str | None = None,
    ) -> None:
        if not address.startswith("https://"):
            raise ValueError(f'a helper\'s address must start with "https://", got {address!r}')
        context, self._retry_seconds = make_context(Path(certificate), Path(helper_certificate)), retry_seconds
        self._client = httpx.Client(base_url=address, verify=context, timeout=timeout, trust_env=False)
        self._request: TicketRequest | None = None
        self._triple_file = None if triples is None else TripleFile(Path(triples), "leader")
        self.triples = None if self._triple_file is None else self._triple_file.stock()

    def issue_ticket(self, request: TicketRequest) -> Ticket:
        answer = self._post("/ticket", request.to_bytes(), 1 << 16)
        self._request = request
        return _read(lambda: Ticket.from_bytes(answer))

    def check_reports(self, reports: Reports) -> Checks:
        shape = self._current().shape
        most = 4096 + len(reports.reports) * Checks.count_bytes(shape)
        answer = self._post("/reports", reports.to_bytes(), most)
        return _read(lambda: Checks.from_bytes(answer, shape))

    def settle(self, leader: Checks) -> Settled:
        terms = self._current().terms
        most = 4096 + 16 * len(leader.answers) + TOTAL * terms.head + terms.ring.width * terms.words
        answer = self._post("/settle", leader.to_bytes(), most)
        return _read(lambda: Settled.from_bytes(answer, terms))

    def project(self, leader: Checks) -> Projected:
        answer = self._post("/project", leader.to_bytes(), 4096 + (len(leader.answers) + MEAN_ROWS) * (8 * SIZE + 1))
        return _read(lambda: Projected.from_bytes(answer))

    def multiply(self, leader: Masked) -> Products:
        rows, references = len(leader.masked), len(leader.references)
        answer = self._post("/multiply", leader.to_bytes(), 4096 + 8 * rows * (rows + references))
        return _read(lambda: Products.from_bytes(answer, leader.n_clients, references, leader.mean))

    def settle_weights(self, leader: Weights) -> Settled:
        terms = self._current().terms
        most = 4096 + 16 * len(leader.weights) + terms.ring.width * terms.words
        answer = self._post("/weights", leader.to_bytes(), most)
        return _read(lambda: Settled.from_bytes(answer, terms))

    def close(self) -> None:
        self._client.close()
        if self._triple_file is not None:
            self._triple_file.close()

    def _current(self) -> TicketRequest:
        if self._request is None:
            raise Refused("there is no ticket yet")
        return self._request

    def _post(self, path: str, body: bytes, most: int) -> bytes:
        """The answer's bytes, at most so many. Repeated while there is none."""
        end, pause = math.inf, FIRST_PAUSE
        while True:
            try:
                return self._post_once(path, body, most)
            except HelperUnreachable:
                # From the first failure on: a helper that needs longer than the timeout has the answer ready later.
                end = min(end, time.monotonic() + self._retry_seconds)
                if time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _post_once(self, path: str, body: bytes, most: int) -> bytes:
        answer = bytearray()
        try:
            with self._client.stream("POST", path, content=body) as response:
                for piece in response.iter_raw():  # nothing is decompressed: the limit is on what arrives
                    answer += piece
                    if len(answer) > most:
                        raise HelperUnreachable(f"the helper's answer to {path} is longer than {most} bytes")
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise HelperUnreachable(f"the helper does not answer {path}: {error}") from error
        if response.status_code in (400, 409, 413):
            raise Refused(answer.decode("utf-8", "replace"))
        if response.status_code != 200:
            raise HelperUnreachable(f"the helper answered {path} with status {response.status_code}")
        return bytes(answer)


def make_context(certificate: Path, helper_certificate: Path) -> ssl.SSLContext:
    """TLS with the leader's certificate, to a helper with the given one and no other."""
    for path in (certificate, certificate.with_suffix(".key"), helper_certificate):
        if not path.is_file():  # ssl's own error does not name the file
            raise FileNotFoundError(f"{path} is needed to connect to the helper, and does not exist")
    context = ssl.create_default_context(cafile=str(helper_certificate))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except Malformed as problem:
        raise HelperUnreachable(f"the helper's answer cannot be read: {problem}") from problem
