"""The HTTP APIs of a SuperLink, as flwr itself defines them, and requests to them."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient

CLIENTS = {"control": ControlHttpClient, "fleet": FleetHttpClient, "runtime": RuntimeHttpClient}


def get_paths(service: str) -> set[str]:
    """What flwr's own client of this API can call: GetRunSeries of control is /v1/control/get-run-series."""
    names = [name for name in vars(CLIENTS[service]) if name[0].isupper()]
    return {f"/v1/{service}/" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower() for name in names}


def fetch_routes(address: str, ca: Path) -> dict[str, set[str]]:
    """All paths that a running SuperLink serves, with their HTTP methods, from its own description."""
    status, body = request(address, ca, "GET", "/openapi.json")
    assert status == 200, body
    return {path: {verb.upper() for verb in verbs} for path, verbs in json.loads(body)["paths"].items()}


def request(address: str, ca: Path, verb: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of the answer. The target is sent as it is."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPSConnection(
        host, int(port), timeout=300, context=ssl.create_default_context(cafile=str(ca))
    )
    try:
        connection.putrequest(verb, target)
        connection.putheader("Content-Type", "application/protobuf")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def register(address: str, ca: Path, key: ec.EllipticCurvePrivateKey) -> int:
    """The id of a new node. As `flwr supernode register`, which starts a process."""
    with ControlHttpClient.from_server_address(address, False, ca.read_bytes(), []) as client:
        node = RegisterNodeRequest(public_key=public_key_to_bytes(key.public_key()))
        return int(client.RegisterNode(node).node_id)
