"""A real headless browser that stays open: scripts are evaluated in its page over the DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
           "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")  # fmt: skip
TIMEOUT = 300.0  # seconds; on an idle computer nothing here takes more than three


@contextmanager
def start_browser(profile: Path) -> Iterator[Browser]:
    """With one page."""
    process = subprocess.Popen(
        [str(BROWSER), *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end, port_file = time.monotonic() + TIMEOUT, profile / "DevToolsActivePort"
        while not (port_file.exists() and port_file.read_text()):
            assert time.monotonic() < end, "the browser did not start"
            time.sleep(0.05)
        port = port_file.read_text().split()[0]
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=TIMEOUT) as response:
            (page,) = [entry for entry in json.load(response) if entry["type"] == "page"]
        with connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=TIMEOUT) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(TIMEOUT)


class Browser:
    """One page of a running browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._n_sent = socket, 0

    def call(self, method: str, **parameters: Any) -> Any:
        self._n_sent += 1
        self._socket.send(json.dumps({"id": self._n_sent, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(TIMEOUT))
            if answer.get("id") == self._n_sent:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of the script as soon as it is true."""
        end = time.monotonic() + TIMEOUT
        while not (value := self.evaluate(script)):
            assert time.monotonic() < end, f"{script} did not become true: {self.evaluate('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def save_screenshot(self, path: Path) -> None:
        """The whole page, not only its window."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
