"""A real headless browser that stays open: scripts are evaluated in its page over the DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
           "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")  # fmt: skip
TIMEOUT = 60.0  # seconds


class Browser:
    """One page. Use it as a context manager."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._process = subprocess.Popen(
            [str(BROWSER), *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._n_sent = 0

    def __enter__(self) -> Browser:
        end, port_file = time.monotonic() + TIMEOUT, self._profile / "DevToolsActivePort"
        while not (port_file.exists() and port_file.read_text()):
            assert time.monotonic() < end, "the browser did not start"
            time.sleep(0.05)
        port = port_file.read_text().split()[0]
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=TIMEOUT) as response:
            (page,) = [entry for entry in json.load(response) if entry["type"] == "page"]
        self._socket = connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=TIMEOUT)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(TIMEOUT)

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
