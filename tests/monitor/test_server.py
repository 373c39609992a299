"""The server of the live page: who may read it, and what it sends."""

from __future__ import annotations

import http.client
import json
import logging
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rounds import all_accepted, make_round

pytest.importorskip("starlette", reason='needs the extra "watch"')
pytest.importorskip("uvicorn", reason='needs the extra "watch"')
pytest.importorskip("prometheus_client", reason='needs the extra "metrics"')

from cosdefense.monitor.access import Address, is_authorized
from cosdefense.monitor.remote import RemoteRun, WatchServerError
from cosdefense.monitor.server import WatchServer
from cosdefense.runs.run_folder import RunFolder
from serving import serving

TOKEN = "a token of more than 16 characters"
HEADER: dict[str, Any] = {"experiment": {"name": "flower"}, "defense": "Clip", "device": "Flower"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.begin(HEADER)
    folder.append(all_accepted(0, accuracy=0.5))
    return folder


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
    response = connection.getresponse()
    content = response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()
    connection.close()
    return content


@contextmanager
def events(port: int, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """The events of an open page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", "/events", headers=headers)
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/event-stream; charset=utf-8"

    def read() -> Iterator[tuple[str, Any]]:
        kind = ""
        for line in response:
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)

    yield read()
    connection.close()


def test_pages_get_a_snapshot_and_then_what_is_new(folder: RunFolder) -> None:
    with serving(folder.path) as port, events(port) as first:
        kind, content = next(first)
        while "title" not in content:  # the server has not yet looked at the folder
            kind, content = next(first)
        assert (kind, content["n_rounds"]) == ("snapshot", 1)
        folder.append(all_accepted(1, accuracy=0.625))
        kind, content = next(first)
        assert (kind, content["evaluations"]) == ("update", [[1, 0.625, None]])
        with events(port) as second:
            kind, content = next(second)
            assert (kind, content["n_rounds"]) == ("snapshot", 2)


def test_every_response_is_guarded(folder: RunFolder) -> None:
    with serving(folder.path) as port:
        for path in (
            "/",
            "/watch.js",
            "/charts.js",
            "/watch.css",
            "/state.json",
            "/metrics",
            "/nothing",
            "/../pyproject.toml",
        ):
            status, headers, content = ask(port, path)
            assert status == (404 if path in ("/nothing", "/../pyproject.toml", "/metrics") else 200), path
            assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
            assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
            assert b"http://" not in content.replace(b"http://www.w3.org/2000/svg", b"")  # nothing from elsewhere
            assert b"https://" not in content
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ask(port, "/state.json", method)[0] == 405


def test_names_that_somebody_made_point_here_are_refused(folder: RunFolder) -> None:
    with serving(folder.path) as port:
        for host in (f"localhost:{port}", "localhost", "127.0.0.1", f"[::1]:{port}", "[::1]", "127.1.2.3"):
            assert ask(port, "/state.json", Host=host)[0] == 200, host
        for host in ("attacker.example", f"attacker.example:{port}", "", "127.0.0.1.attacker.example", "192.0.2.1"):
            assert ask(port, "/state.json", Host=host)[0] == 421, host


def test_a_token_is_needed_by_everybody_once_there_is_one(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    basic = b64encode(f"anybody:{TOKEN}".encode()).decode()
    with serving(folder.path, TOKEN, metrics=True) as port:
        for path in ("/", "/watch.js", "/events", "/state.json", "/metrics", "/nothing"):
            status, headers, content = ask(port, path)
            assert status == 401
            assert headers["www-authenticate"].startswith("Basic")
            assert b"Clip" not in content
        for authorization in (f"Bearer {TOKEN}", f"Basic {basic}", f"bearer {TOKEN}"):
            assert ask(port, "/metrics", Authorization=authorization)[0] == 200
        with events(port, Authorization=f"Basic {basic}") as page:
            assert next(page)[0] == "snapshot"
    assert TOKEN not in caplog.text
    assert basic not in caplog.text


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Token {TOKEN}", TOKEN, "Basic !",
     "Basic /w==", "Basic " + b64encode(f"{TOKEN}:".encode()).decode(), "Basic " + b64encode(TOKEN.encode()).decode()],
)  # fmt: skip
def test_other_credentials_are_refused(authorization: str) -> None:
    assert not is_authorized(authorization, TOKEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_other_computers_need_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValueError, match="COSDEFENSE_WATCH_TOKEN"):
        WatchServer(tmp_path, Address(host, 0))
    with pytest.raises(ValueError, match="at least 16"):
        WatchServer(tmp_path, Address(host, 0), "short")
    WatchServer(tmp_path, Address(host, 0), TOKEN)


def test_addresses() -> None:
    assert Address.parse("[::1]:80") == Address("::1", 80)
    assert str(Address.parse("[::1]:80")) == "[::1]:80"
    assert [Address.parse(f"{host}:1").is_loopback for host in ("127.0.0.1", "localhost", "[::1]", "127.1.2.3")] == [
        True
    ] * 4
    for text in ("8080", "localhost", ":80", "localhost:", "localhost:70000", "localhost:-1"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            Address.parse(text)


def test_metrics_are_on_the_same_server(folder: RunFolder) -> None:
    for number in range(1, 4):
        folder.append(make_round(number, {1: None, 2: "shape"}, skipped="why"))
    with serving(folder.path, metrics=True) as port:
        RemoteRun(f"http://127.0.0.1:{port}").snapshot()
        end = 100
        while b"cosdefense_rounds_total 4.0" not in (text := ask(port, "/metrics")[2]):
            assert (end := end - 1), text
        assert b'cosdefense_active_alarms{rule="rounds-skipped"} 1.0' in text


# ---- read from another computer


def test_a_server_is_read_with_its_token(folder: RunFolder) -> None:
    with serving(folder.path, TOKEN) as port:
        run = RemoteRun(f"http://127.0.0.1:{port}/", TOKEN)
        first = run.snapshot()
        assert run.snapshot()["folder"] == first["folder"]
        with pytest.raises(WatchServerError, match="answered 401: the token in COSDEFENSE_WATCH_TOKEN"):
            RemoteRun(f"http://127.0.0.1:{port}", "another token").snapshot()
    with pytest.raises(WatchServerError, match="cannot be read"):
        run.snapshot()


@contextmanager
def other_server(status: int, content: bytes, **headers: str) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b'{"status": 1}', b"\xff"])
def test_other_servers_are_refused(content: bytes) -> None:
    with other_server(200, content) as port, pytest.raises(WatchServerError, match="is not the state of a run"):
        RemoteRun(f"http://127.0.0.1:{port}").snapshot()


def test_the_token_goes_to_no_other_address() -> None:
    with (
        other_server(302, b"", Location="http://127.0.0.1:9/state.json") as port,
        pytest.raises(WatchServerError, match="answered 302, which is an address elsewhere"),
    ):
        RemoteRun(f"http://127.0.0.1:{port}", TOKEN).snapshot()


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://user:secret@host", "http://token@host"])
def test_addresses_of_servers(url: str) -> None:
    with pytest.raises(ValueError, match="an address must") as raised:
        RemoteRun(url)
    assert "secret" not in str(raised.value)
