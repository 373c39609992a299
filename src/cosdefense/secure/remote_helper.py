"""The leader's end of the connection to a helper on another computer."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx

from .exchange import TOTAL, Checks, Reports, Settled, TicketRequest
from .helper import Refused
from .messages import Malformed
from .proof import ELEMENT
from .ticket import Ticket

T = TypeVar("T")


class HelperUnreachable(ConnectionError):
    """The helper does not answer, or answers something else than the protocol. The round must be skipped."""


class RemoteHelper:
    """A helper behind HTTPS, with the same three steps as `Helper`.

    Args:
        address: Such as "https://helper.example.org:8443".
        certificate: The leader's TLS certificate. Its private key lies beside it, with the ending ".key".
        helper_authority: The authority that signed the helper's certificate.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, address: str, certificate: Path, helper_authority: Path, timeout: float = 60.0) -> None:
        if not address.startswith("https://"):
            raise ValueError(f'a helper\'s address must start with "https://", got {address!r}')
        context = ssl.create_default_context(cafile=str(helper_authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self._client = httpx.Client(base_url=address, verify=context, timeout=timeout, trust_env=False)
        self._request: TicketRequest | None = None

    def issue_ticket(self, request: TicketRequest) -> Ticket:
        answer = self._post("/ticket", request.to_bytes(), 1 << 16)
        self._request = request
        return _read(lambda: Ticket.from_bytes(answer))

    def check_reports(self, reports: Reports) -> Checks:
        shape = self._current().shape
        most = 64 + len(reports.reports) * (shape.answers * ELEMENT + 64)
        answer = self._post("/reports", reports.to_bytes(), most)
        return _read(lambda: Checks.from_bytes(answer, shape))

    def settle(self, leader: Checks) -> Settled:
        terms = self._current().terms
        most = 4096 + 16 * len(leader.answers) + TOTAL * terms.head + terms.ring.width * terms.words
        answer = self._post("/settle", leader.to_bytes(), most)
        return _read(lambda: Settled.from_bytes(answer, terms))

    def close(self) -> None:
        self._client.close()

    def _current(self) -> TicketRequest:
        if self._request is None:
            raise Refused("there is no ticket yet")
        return self._request

    def _post(self, path: str, body: bytes, most: int) -> bytes:
        """The answer's bytes, at most so many."""
        answer = bytearray()
        try:
            with self._client.stream("POST", path, content=body) as response:
                for piece in response.iter_bytes():
                    answer += piece
                    if len(answer) > most:
                        raise HelperUnreachable(f"the helper's answer to {path} is longer than {most} bytes")
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise HelperUnreachable(f"the helper does not answer {path}: {error}") from error
        if response.status_code in (400, 409):
            raise Refused(answer.decode("utf-8", "replace"))
        if response.status_code != 200:
            raise HelperUnreachable(f"the helper answered {path} with status {response.status_code}")
        return bytes(answer)


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except Malformed as problem:
        raise HelperUnreachable(f"the helper's answer cannot be read: {problem}") from problem
