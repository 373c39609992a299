"""The helper on HTTPS. Only who has a certificate of the leader's authority can connect.

Bodies are the messages of `exchange.py`, as bytes. A request that is refused gets the reason as text: 400 for bytes
that are no message, 409 for what the helper does not agree to, 413 for bodies that are too large.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from threading import Lock

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .comparing_helper import ComparingHelper
from .comparison import Masked, Weights
from .exchange import Checks, Outcome, Reports, Settled, TicketRequest
from .helper_config import BadSettings, HelperConfig
from .messages import Malformed
from .policy import Refused
from .projection import SIZE
from .report import SealedReport
from .terms import MAX_CLIENTS, MAX_HEAD, RefusedTerms
from .triple_files import TripleFile
from .triples import TripleStock, deal_stocks

LOG = logging.getLogger(__name__)
MAX_REQUEST = 8 * MAX_HEAD + (1 << 20)  # bytes of a request for a ticket: the global head, and terms
MAX_REPORTS = 16 + MAX_CLIENTS * SealedReport.SIZE
MAX_WEIGHTS = 64 + 3 * 8 * MAX_CLIENTS  # of a round, and of both sums of a running mean
MAX_TEXT = 500  # characters of a reason, which may quote what the leader sent


class HelperService:
    """Answers one request at a time: the steps of a round follow each other."""

    def __init__(self, config: HelperConfig) -> None:
        self._config = config
        self._helper = ComparingHelper(
            config.read_identity(), config.read_roster(), config.policy, config.state, triples=_open_triples(config)
        )
        self._lock = Lock()
        self._request: TicketRequest | None = None

    def issue_ticket(self, body: bytes) -> bytes:
        request = TicketRequest.from_bytes(body)
        self._helper.roster = self._read_roster()  # operators add and remove nodes between rounds
        ticket = self._helper.issue_ticket(request)
        self._request = request
        LOG.info("ticket %d for %d clients, model %s", ticket.number, request.terms.clients, ticket.model.hex()[:8])
        return ticket.to_bytes()

    def check_reports(self, body: bytes) -> bytes:
        checks = self._helper.check_reports(Reports.from_bytes(body))
        counts = {outcome.name: checks.outcomes.count(outcome) for outcome in sorted(set(checks.outcomes))}
        LOG.info("reports of round %d: %s", checks.number, counts)
        return checks.to_bytes()

    def settle(self, body: bytes) -> bytes:
        if self._request is None:
            raise Refused("there is no current round")
        return self._write(self._helper.settle(Checks.from_bytes(body, self._request.shape)), self._request)

    def project(self, body: bytes) -> bytes:
        if self._request is None:
            raise Refused("there is no current round")
        projected = self._helper.project(Checks.from_bytes(body, self._request.shape))
        n_valid = projected.outcomes.count(Outcome.VALID)
        LOG.info("round %d: %d reports compared, triple %d", projected.number, n_valid, projected.triple)
        return projected.to_bytes()

    def multiply(self, body: bytes) -> bytes:
        return self._helper.multiply(Masked.from_bytes(body)).to_bytes()

    def settle_weights(self, body: bytes) -> bytes:
        if self._request is None:
            raise Refused("there is no current round")
        return self._write(self._helper.settle_weights(Weights.from_bytes(body)), self._request)

    def _write(self, settled: Settled, request: TicketRequest) -> bytes:
        n_accepted = sum(weight > 0 for weight in settled.weights)
        LOG.info("round %d: %d accepted, %s", settled.number, n_accepted, settled.refused or "sum given")
        return settled.to_bytes(request.terms)

    def app(self) -> Starlette:
        """The steps of a round, and a health check."""
        steps: dict[str, tuple[Callable[[bytes], bytes], Callable[[], int]]] = {
            "/ticket": (self.issue_ticket, lambda: MAX_REQUEST),
            "/reports": (self.check_reports, lambda: MAX_REPORTS),
            "/settle": (self.settle, self._count_answers),
            "/project": (self.project, self._count_answers),
            "/multiply": (self.multiply, self._count_projections),
            "/weights": (self.settle_weights, lambda: MAX_WEIGHTS),
        }
        routes = [Route(path, self._endpoint(*step), methods=["POST"]) for path, step in steps.items()]
        return Starlette(routes=[*routes, Route("/health", lambda _: Response("ok"))])

    def _count_answers(self) -> int:
        """The most bytes of a settlement in this round."""
        request = self._request
        return 16 + (0 if request is None else request.terms.clients * Checks.count_bytes(request.shape))

    def _count_projections(self) -> int:
        """The most bytes of masked projections in this round."""
        terms = None if self._request is None else self._request.terms
        return 64 + (0 if terms is None else (terms.rows + (terms.references or 0)) * 8 * SIZE)

    def _read_roster(self) -> frozenset[bytes]:
        try:
            return frozenset(self._config.read_roster())
        except BadSettings as problem:  # it names a file of this operator, which is not the leader's business
            LOG.error("%s", problem)
            raise Refused("the helper's roster cannot be read") from problem

    def _endpoint(self, step: Callable[[bytes], bytes], limit: Callable[[], int]) -> Callable[..., object]:
        def run(body: bytes) -> Response:
            with self._lock:
                try:
                    return Response(step(body), media_type="application/octet-stream")
                except (Malformed, RefusedTerms) as problem:
                    return refuse(400, "bad request", problem)
                except Refused as problem:
                    return refuse(409, "refused", problem)

        def refuse(status: int, kind: str, problem: Exception) -> Response:
            reason = str(problem)[:MAX_TEXT]
            LOG.warning("%s: %s", kind, reason)
            return Response(reason, status, media_type="text/plain")

        async def endpoint(request: Request) -> Response:
            body, most = bytearray(), limit()
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    return Response(f"at most {most} bytes are allowed", 413, media_type="text/plain")
            return await run_in_threadpool(run, bytes(body))

        return endpoint


def _open_triples(config: HelperConfig) -> TripleStock:
    """None at all without a file: the policy refuses comparisons then."""
    if config.triples is None:
        return deal_stocks(0, 0)[1]
    stock = TripleFile(config.triples, "helper").stock()
    LOG.info("%d triples are left", len(stock))
    return stock


def serve(path: Path) -> None:
    """Run a helper until it is stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = HelperConfig.load(path)
    with lock_state(config.state):
        settings = configure_server(config)
        LOG.info("listening on %s:%d for %d nodes", config.host, config.port, len(config.read_roster()))
        uvicorn.Server(settings).run()


@contextmanager
def lock_state(state: Path) -> Iterator[None]:
    """Two helpers with one state would each settle rounds that the other does not know of."""
    with state.with_name(state.name + ".lock").open("w") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise BadSettings(f"{state} is in use by another helper") from error
        yield


def configure_server(config: HelperConfig) -> uvicorn.Config:
    """The service behind TLS that knows the leader's certificate alone."""
    files = (config.certificate, config.certificate_key, config.leader_authority)
    for path in files:  # ssl's own errors do not name the file
        if not path.is_file():
            raise BadSettings(f"{path} is needed, and does not exist")
    settings = uvicorn.Config(
        HelperService(config).app(),
        host=config.host,
        port=config.port,
        ssl_certfile=config.certificate,
        ssl_keyfile=config.certificate_key,
        ssl_ca_certs=str(config.leader_authority),
        ssl_cert_reqs=ssl.CERT_REQUIRED,
        ws="none",  # nobody needs them here
        log_level="warning",
        access_log=False,
    )
    try:
        settings.load()
    except ssl.SSLError as error:
        names = ", ".join(map(str, files))
        raise BadSettings(f"one of {names} is no certificate, or not the key of its certificate: {error}") from error
    assert settings.ssl is not None
    settings.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    return settings
