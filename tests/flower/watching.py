"""`cosdefense watch --serve` as a process beside a federation, its page in a real browser, and Prometheus metrics."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from loopback import HOST, free_port
from prometheus_client.parser import text_string_to_metric_families

from browser import Browser, start_browser

STATE = "document.getElementById('state')?.textContent"
ROUNDS = "[...document.querySelectorAll('#rounds th')].map((cell) => cell.textContent).join()"
TEXT = "document.body.innerText"
TIMEOUT = 300.0  # seconds; on an idle computer nothing here takes more than three
Metrics = dict[tuple[str, tuple[str, ...]], float]  # by name and labels


@contextmanager
def open_live_page(folder: Path, scratch: Path) -> Iterator[Browser]:
    """The page of a run that need not have begun yet."""
    port = free_port()
    command = [sys.executable, "-m", "cosdefense", "watch", str(folder), "--serve", "--address", f"{HOST}:{port}"]
    with (scratch / "watch.log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_until_listening(port, server)
        with start_browser(scratch / "profile") as browser:
            browser.open(f"http://{HOST}:{port}/")
            yield browser
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(TIMEOUT)


def scrape(port: int, n_rounds: int) -> Metrics:
    """The metrics of a server over HTTP, as soon as it has served so many rounds."""
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            metrics = _parse(httpx.get(f"http://{HOST}:{port}/metrics").raise_for_status().text)
        except httpx.TransportError:  # not started yet
            metrics = {}
        if metrics.get(("cosdefense_rounds_total", ())) == n_rounds:
            return metrics
        assert time.monotonic() < end, f"{n_rounds} rounds were not served: {metrics}"
        time.sleep(0.1)


def _parse(text: str) -> Metrics:
    """By the parser of Prometheus's own client. The values of labels are in the order of the labels' names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _wait_until_listening(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + TIMEOUT
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        assert server.poll() is None, "cosdefense watch ended"
        assert time.monotonic() < end, "cosdefense watch did not start"
        time.sleep(0.05)
