"""Downloads, against a server on this machine: what arrives is whole and verified, or nothing is left behind."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cosdefense.data import DATASETS, DataError, Specification, datasets, fetch, load, where
from cosdefense.data.download import CHUNK, download
from cosdefense.data.releases import IdxFiles

BODY = bytes(range(256)) * 3000  # three chunks
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class Server(ThreadingHTTPServer):
    """Serves `pages`; how a path begins says what goes wrong with it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.stop_stalling = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked.append(self.path)
        _, fault, name = self.path.split("/")
        body = self.server.pages.get(name)
        if body is None or fault == "absent":
            self.send_error(404)
            return
        self.send_response(200)
        if fault != "unmeasured":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        sent = {"truncated": body[:-100], "stalling": body[:100], "changed": body[:-1] + b"?"}.get(fault, body)
        try:
            self.wfile.write(sent)
            if fault == "stalling":
                self.wfile.flush()
                self.server.stop_stalling.wait(300)
        except ConnectionError:
            self.close_connection = True  # the client has seen enough

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.stop_stalling.set()
            server.shutdown()
            thread.join(300)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's own is looked at, and no proxy is asked."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("COSDEFENSE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")


def verify(path: Path) -> None:
    if path.read_bytes() != BODY:
        raise DataError("another file")


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def everything(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# One file


@pytest.mark.parametrize(("fault", "total"), [("fine", len(BODY)), ("unmeasured", 0)])
def test_a_file_arrives(server: Server, tmp_path: Path, fault: str, total: int) -> None:
    server.pages["file"] = BODY
    calls: list[tuple[str, int, int]] = []
    target = tmp_path / "new" / "file"
    url = f"{server.address}/{fault}/file"
    assert download([url], target, verify, len(BODY), lambda *call: calls.append(call)) == target
    assert target.read_bytes() == BODY
    assert everything(tmp_path) == [target]
    sizes = (CHUNK, 2 * CHUNK, len(BODY), len(BODY))  # and once more at the end
    assert calls == [("downloading file", size, total) for size in sizes]


def test_a_file_arrives_readable_for_others(server: Server, tmp_path: Path) -> None:
    server.pages["file"] = BODY
    before = os.umask(0o022)
    try:
        target = download([f"{server.address}/fine/file"], tmp_path / "file", verify, len(BODY))
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("fault", ["absent", "truncated", "changed"])
def test_the_second_mirror_is_asked_when_the_first_fails(server: Server, tmp_path: Path, fault: str) -> None:
    server.pages["file"] = BODY
    urls = [f"{server.address}/{mirror}/file" for mirror in (fault, "fine", "third")]
    assert download(urls, tmp_path / "file", verify, len(BODY)).read_bytes() == BODY
    assert server.asked == [f"/{fault}/file", "/fine/file"]
    assert everything(tmp_path) == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("fault", "limit", "reason"),
    [
        ("absent", len(BODY), "404 Client Error"),
        ("changed", len(BODY), "another file"),
        ("truncated", len(BODY), "100 more expected"),
        ("fine", len(BODY) - 1, f"needed at most {len(BODY) - 1} bytes, found {len(BODY)}"),
        ("unmeasured", len(BODY) - 1, f"needed at most {len(BODY) - 1} bytes, found {len(BODY)}"),
        ("stalling", len(BODY), "timed out"),
    ],
)
def test_what_goes_wrong_leaves_nothing_behind(
    server: Server, tmp_path: Path, fault: str, limit: int, reason: str
) -> None:
    server.pages["file"] = BODY
    url = f"{server.address}/{fault}/file"
    with pytest.raises(DataError, match=f"^{url}: .*{reason}"):
        download([url], tmp_path / "file", verify, limit, timeout=0.3 if fault == "stalling" else 300.0)
    assert everything(tmp_path) == []


def test_what_was_there_stays_when_a_download_fails(server: Server, tmp_path: Path) -> None:
    server.pages["file"] = BODY
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(DataError, match="another file"):
        download([f"{server.address}/changed/file"], tmp_path / "file", verify, len(BODY))
    assert everything(tmp_path) == [tmp_path / "file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_an_interrupt_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    server.pages["file"] = BODY
    partial: list[Path] = []

    def interrupt(what: str, done: int, total: int) -> None:
        partial.extend(everything(tmp_path))
        raise KeyboardInterrupt

    urls = [f"{server.address}/fine/file"] * 2
    with pytest.raises(KeyboardInterrupt):
        download(urls, tmp_path / "file", verify, len(BODY), interrupt)
    assert len(partial) == 1  # there was a temporary file, under another name
    assert partial != [tmp_path / "file"]
    assert everything(tmp_path) == []
    assert server.asked == ["/fine/file"]


def test_without_a_server_every_mirror_has_its_reason(tmp_path: Path) -> None:
    urls = [f"{closed_port()}/one", f"{closed_port()}/two"]
    with pytest.raises(DataError) as caught:
        download(urls, tmp_path / "new" / "file", verify, 10)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == urls
    assert all("refused" in line for line in lines)
    assert not (tmp_path / "new").exists()


# A dataset


def tiny(mirrors: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of a dataset, called "tiny" from now on, that the mirrors carry."""
    images, labels = b"\x00\x00\x08\x03\x00\x00\x00\x02" + b"\x00\x00\x00\x01" * 2, b"\x00\x00\x08\x01\x00\x00\x00\x02"
    plain = (images + b"ab", labels + b"\x00\x01", images + b"cd", labels + b"\x01\x00")
    release = IdxFiles(*(hashlib.sha256(data).hexdigest() for data in plain))
    known = Specification(
        "tiny", "tiny", (1, 1, 1), 2, 2, ("a", "b"), (0.5,), (0.5,), (release,), mirrors, max_download=1000
    )
    monkeypatch.setitem(DATASETS, "tiny", known)
    return {f"{name}.gz": gzip.compress(data) for name, data in zip(NAMES, plain, strict=True)}


def test_load_downloads_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.pages = tiny((f"{server.address}/fine/",), monkeypatch)
    calls: list[tuple[str, int, int]] = []
    for _ in range(2):
        dataset = load("tiny", tmp_path / "given", lambda *call: calls.append(call))
        assert bytes(dataset.train_inputs.flatten().tolist()) == b"ab"
        assert dataset.test_targets.tolist() == [1, 0]
    assert where("tiny", tmp_path / "given") == tmp_path / "given" / "tiny"
    assert [path.name for path in everything(tmp_path)] == sorted(server.pages)
    assert server.asked == [f"/fine/{name}" for name in server.pages]
    assert list(dict.fromkeys(what for what, _, _ in calls)) == [f"downloading {name}" for name in server.pages]


def test_only_what_is_missing_is_downloaded(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.pages = tiny((f"{server.address}/fine/",), monkeypatch)
    folder = tmp_path / "given" / "tiny"
    folder.mkdir(parents=True)
    for name in NAMES[:3]:
        (folder / name).write_bytes(gzip.decompress(server.pages[f"{name}.gz"]))
    assert fetch("tiny", tmp_path / "given") == folder
    assert server.asked == [f"/fine/{NAMES[3]}.gz"]


def test_fetch_verifies_what_is_there(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.pages = tiny((f"{server.address}/fine/",), monkeypatch)
    folder = fetch("tiny", tmp_path)
    (folder / f"{NAMES[0]}.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match=f"{NAMES[0]}.gz: needed SHA-256"):
        fetch("tiny", tmp_path)


def test_where_downloads_go(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.pages = tiny((f"{server.address}/fine/",), monkeypatch)
    assert fetch("tiny") == tmp_path / "cache" / "cosdefense" / "tiny"
    assert fetch("tiny", tmp_path / "given") == tmp_path / "cache" / "cosdefense" / "tiny"  # it is there already
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new cache"))
    monkeypatch.setenv("COSDEFENSE_DATA", str(tmp_path / "shared"))
    with monkeypatch.context() as locked:
        locked.setattr(os, "access", lambda path, mode: False)
        assert fetch("tiny") == tmp_path / "new cache" / "cosdefense" / "tiny"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "newer cache"))
    assert fetch("tiny") == tmp_path / "shared" / "tiny"
    monkeypatch.setenv("COSDEFENSE_DATA", str(tmp_path / "newly shared"))
    assert fetch("tiny", tmp_path / "given") == tmp_path / "given" / "tiny"


def test_all_mirrors_failing_says_what_to_do(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = closed_port()
    server.pages = tiny((f"{dead}/", f"{server.address}/changed/"), monkeypatch)
    with pytest.raises(DataError) as caught:
        load("tiny", tmp_path / "given")
    text = str(caught.value)
    assert text.startswith("tiny was not found\nlooked in:\n")
    assert f"\n  {tmp_path}/debian/tiny\n" in text
    assert f"\nneeded in {tmp_path}/given/tiny:\n  {', '.join(f'{name}.gz' for name in NAMES)}\n" in text
    assert f"\ndownloading failed:\n  {dead}/{NAMES[0]}.gz: " in text
    assert f"\n  {server.address}/changed/{NAMES[0]}.gz: " in text
    assert everything(tmp_path) == []


def test_without_pooch_datasets_are_read_from_disk_but_not_downloaded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages = tiny((f"{server.address}/fine/",), monkeypatch)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"needed pooch, which is not installed: .*'\.\[data\]'"):
        load("tiny", tmp_path / "given")
    assert server.asked == []
    folder = tmp_path / "given" / "tiny"
    folder.mkdir(parents=True)
    for name, data in server.pages.items():
        (folder / name).write_bytes(data)
    assert load("tiny", tmp_path / "given").test_targets.tolist() == [1, 0]
