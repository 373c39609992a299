"""A SuperLink and SuperNodes as processes of this computer, reachable from this computer alone, ended together."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from certificates import Certificates

HOST, CONNECTION = "127.0.0.1", "loopback"
ASK_SECONDS = 20.0
COMMANDS = Path(sys.executable).parent  # where Flower's were installed beside this Python


class FederationFailed(RuntimeError):
    """Something did not start, or did not finish in time."""


@dataclass
class Loopback:
    """A federation in a folder: logs, Flower's settings, the SuperLink's database."""

    folder: Path
    certificates: Certificates | None = None  # None: neither TLS nor node authentication
    port: int = field(default_factory=lambda: free_port())
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Loopback:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # So it is for jobs that a script puts in the background, and so the processes would inherit it: but the
            # SuperLink's own helpers are ended by that signal when it is gone.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.folder.mkdir(parents=True, exist_ok=True)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        trust = f'root-certificates = "{self.certificates.ca}"' if self.certificates else "insecure = true"
        settings = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
        (home / "config.toml").write_text(settings + trust + "\n")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name in list(self.processes):
            self.end(name)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    # ---- starting and ending

    def start_superlink(self, database: bool = True) -> None:
        """With a database it can be killed and started again; without one it bears a busier computer.

        On one that has far too much to do, SQLite's file is locked for too long, and the part of the SuperLink that
        starts runs ends for good (flwr 1.41).
        """
        options = ["--host", HOST, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        options += ["--database", str(self.folder / "state.db")] if database else []
        if self.certificates:
            own = self.certificates
            options += ["--ssl-ca-certfile", str(own.ca), "--ssl-certfile", str(own.server)]
            options += ["--ssl-keyfile", str(own.server_key), "--enable-supernode-auth"]
        self._start("superlink", "flower-superlink", options + ([] if self.certificates else ["--insecure"]))
        self.wait_for(lambda: _answers(self.port), "the SuperLink", 60.0)

    def start_supernode(
        self,
        name: str,
        config: Mapping[str, str | int | bool],
        *,
        key: Path | None = None,
        ca: Path | None = None,
        insecure: bool = False,
    ) -> None:
        """With node authentication a key that was registered. A CA of one's own, or none, is for seeing it refused."""
        options = ["--superlink", self.address, "--host", HOST, "--port", str(free_port())]
        options += ["--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
        if self.certificates and not insecure:
            options += ["--root-certificates", str(ca or self.certificates.ca)]
        else:
            options += ["--insecure"]
        options += ["--auth-supernode-private-key", str(key)] if key else []
        self._start(name, "flower-supernode", options)

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """The process and the ones it started: all of its session."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=5)

    def _start(self, name: str, command: str, options: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [COMMANDS / command, *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, start_new_session=True,
            )  # fmt: skip

    @property
    def _environment(self) -> dict[str, str]:
        own = {"FLWR_HOME": str(self.folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        path = f"{COMMANDS}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **own, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    # ---- asking

    def flwr(self, *arguments: str, timeout: float = 60.0) -> str:
        """What a `flwr` command prints."""
        done = subprocess.run(
            [COMMANDS / "flwr", *arguments], env=self._environment, capture_output=True, text=True, check=False,
            timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise FederationFailed(f"flwr {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def register(self, key: Path) -> None:
        self.flwr("supernode", "register", str(key.with_suffix(".pub")), CONNECTION)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def node_id(self, name: str) -> int | None:
        """The identity that the SuperLink gave it; None: it has none yet."""
        found = re.findall(r"SuperNode ID: (\d+)", self.log(name))
        return int(found[-1]) if found else None

    def wait_for(self, ready: Any, what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                raise FederationFailed(f"{what} took more than {seconds:.0f} seconds; the logs are in {self.folder}")
            time.sleep(0.2)

    # ---- running

    def submit(self, app: Path, **config: str | int | float | bool) -> int:
        """Start a run of the app with these settings; its number."""
        settings = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        said = self.flwr("run", str(app), CONNECTION, "--format", "json", "--run-config", settings)
        return int(json.loads(said)["run-id"])

    def status(self, run: int) -> str:
        (found,) = json.loads(self.flwr("ls", CONNECTION, "--run-id", str(run), "--format", "json"))["runs"]
        return str(found["status"])

    def finish(self, run: int, seconds: float) -> None:
        """Wait until it is done, well. To ask costs a second of work, so it is done seldom unless the log hints."""
        end, asked = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < end:
            time.sleep(0.5)
            hinted = re.search(rf"Finished task \d+ of run {run}", self.log("superlink"))
            if not hinted and time.monotonic() - asked < ASK_SECONDS:
                continue
            status, asked = self.status(run), time.monotonic()
            if status == "finished:completed":
                return
            if status.startswith("finished"):
                raise FederationFailed(f"run {run} is {status}\n{self.log('superlink')[-3000:]}")
        raise FederationFailed(f"run {run} took more than {seconds:.0f} seconds; the logs are in {self.folder}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0
