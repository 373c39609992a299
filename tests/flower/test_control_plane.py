"""From the position of a node, a SuperLink behind deploy/nginx.conf has a Fleet API and nothing else."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason='flwr, the extra "flower", is not installed here')

import httpx
from apis import fetch_routes, get_paths, register, request
from certificates import make_certificates
from cryptography.hazmat.primitives.asymmetric import ec
from fleet_node import FleetNode
from loopback import COMMANDS, NODE_HOST, Loopback
from proxy import NGINX, SETTINGS, write_settings

if not (COMMANDS / "flower-superlink").exists():
    pytest.skip("flower-superlink is not installed beside this Python", allow_module_level=True)
if NGINX is None:
    pytest.skip("nginx is not installed: apt-get install nginx", allow_module_level=True)

pytestmark = pytest.mark.federation

TRICKS = [  # that lead to another path if a proxy and a server read them differently
    "/v1/fleet/../control/list-nodes",
    "/v1/fleet/%2e%2e/control/list-nodes",
    "/v1/fleet/..%2fcontrol/list-nodes",
    "/v1/fleet/..;/control/list-nodes",
    "/v1/fleet/pull-messages/../../control/list-nodes",
    "/v1/fleet//../control/list-nodes",
    "//v1/control/list-nodes",
    "/./v1/control/list-nodes",
    "/v1/control/list-nodes?/v1/fleet/pull-messages",
    "/v1/control/list-nodes#/v1/fleet/pull-messages",
    "/v1/control%2flist-nodes",
    "/v1/control/list-nodes%00/v1/fleet/pull-messages",
    "/V1/control/list-nodes",
    "/v1/fleet%2f..%2fcontrol%2flist-nodes",
    "https://127.0.0.1:8000/v1/control/list-nodes",
    "/v1/fleet/pull-messages%20HTTP/1.1%0d%0aX:%20/v1/control/list-nodes",
]


@dataclass(frozen=True)
class Server:
    running: Loopback
    ca: Path

    def ask(self, verb: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Through the proxy, as a node."""
        return request(self.running.node_address, self.ca, verb, target, body)

    def count_control_calls(self) -> int:
        """Those that reached the SuperLink, from its access log."""
        return self.running.read_log("superlink").count("/v1/control/")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    certificates = make_certificates(folder / "secrets")
    with Loopback(folder / "running", certificates) as running:
        running.start_superlink(database=False)
        running.start_proxy()
        yield Server(running, certificates.ca)


def test_every_path_but_those_of_the_fleet_api_is_refused(server: Server) -> None:
    """The paths are those that the SuperLink itself describes, so that a later flwr cannot add one unnoticed."""
    routes = fetch_routes(server.running.address, server.ca)
    assert get_paths("control") | get_paths("runtime") | get_paths("fleet") <= set(routes)
    n_before = server.count_control_calls()
    for path in [*sorted(set(routes) - get_paths("fleet")), "/", "/docs", "/openapi.json", "/v1/fleet", "/v1/fleet/"]:
        for verb in {"GET", "POST", "PUT"} | routes.get(path, set()):
            assert server.ask(verb, path)[0] == 403, f"{verb} {path}"
    assert server.count_control_calls() == n_before


def test_the_same_calls_are_answered_on_the_server_itself(server: Server) -> None:
    """So the proxy is what refuses them: the SuperLink gives anyone a list of nodes, and a task to its finder."""
    for path in ("/v1/control/list-nodes", "/v1/control/list-runs", "/v1/runtime/acquire-task"):
        assert request(server.running.address, server.ca, "POST", path)[0] == 200


@pytest.mark.parametrize("target", TRICKS)
def test_no_spelling_of_a_path_leads_around_the_proxy(server: Server, target: str) -> None:
    n_before = server.count_control_calls()
    assert server.ask("POST", target)[0] in (400, 403)
    assert server.count_control_calls() == n_before


@pytest.mark.parametrize(
    "framing",
    ["Content-Length: {length}\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: {length}",
     "Content-Length: 0\r\nContent-Length: {length}", "Transfer-Encoding: xchunked\r\nContent-Length: 0"],
)  # fmt: skip
def test_no_second_request_hides_in_a_body(server: Server, framing: str) -> None:
    n_before, host = server.count_control_calls(), server.running.node_address
    hidden = f"POST /v1/control/list-nodes HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"
    body = f"0\r\n\r\n{hidden}"
    head = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: {host}\r\n{framing.format(length=len(body))}\r\n\r\n"
    context = ssl.create_default_context(cafile=str(server.ca))
    address, _, port = host.rpartition(":")
    with (
        socket.create_connection((address, int(port)), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname=address) as connection,
    ):
        connection.sendall((head + body).encode())
        connection.settimeout(1.0)
        try:
            while connection.recv(65536):
                pass
        except TimeoutError:  # the connection stays open
            pass
    assert server.count_control_calls() == n_before


def test_the_fleet_api_is_forwarded(server: Server) -> None:
    for path in get_paths("fleet"):
        answer = request(server.running.address, server.ca, "POST", path)
        assert server.ask("POST", path) == answer
        assert answer[0] == 401  # not signed by a registered key
        assert server.ask("GET", path)[0] == 403


def test_a_key_is_registered_on_the_server_and_not_from_elsewhere(server: Server) -> None:
    own = ec.generate_private_key(ec.SECP384R1())
    node = FleetNode(server.running.node_address, server.ca, own, lambda message: None)
    with closing(node.client):
        with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
            register(server.running.node_address, server.ca, own)
        with pytest.raises(httpx.HTTPStatusError):
            node.activate()
        assert register(server.running.address, server.ca, own) == node.activate()


def test_the_port_of_the_superlink_is_closed_to_nodes(server: Server) -> None:
    if server.running.address.partition(":")[0] == NODE_HOST:
        pytest.skip("this computer has only one loopback address")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((NODE_HOST, server.running.port), timeout=60)


def test_a_request_is_larger_than_a_piece_of_an_array_and_not_larger_than_8_mib(server: Server) -> None:
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

    assert server.ask("POST", "/v1/fleet/push-object", bytes(FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 65536))[0] == 400
    assert server.ask("POST", "/v1/fleet/push-object", bytes(9 * 2**20))[0] == 413


def test_nginx_accepts_the_file_as_it_is_installed(tmp_path: Path) -> None:
    """Only the files of certificates and the port, which needs root, differ."""
    settings = write_settings(tmp_path, "127.0.0.1:8443", "127.0.0.1:8000", make_certificates(tmp_path / "secrets"))
    done = subprocess.run([str(NGINX), "-t", "-c", settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert SETTINGS.read_text().count("listen ") == 1
