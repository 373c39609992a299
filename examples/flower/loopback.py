"""Runs a SuperLink and SuperNodes as processes on the loopback interface, and stops them together."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from certificates import Certificates
from proxy import NGINX, write_settings

HOST, CONNECTION = "127.0.0.1", "loopback"
# Another address of the loopback interface, which plays the part of the server's address in the network.
NODE_HOST = "127.0.0.2" if sys.platform == "linux" else HOST
STATUS_INTERVAL = 20.0  # seconds between two `flwr ls`, each of which takes a second of CPU time
COMMANDS = Path(sys.executable).parent  # Flower's commands are installed beside Python


class FederationFailed(RuntimeError):
    """A process or a run failed, or took too long."""


@dataclass
class Loopback:
    """A federation in a folder: logs, Flower's settings, the SuperLink's database."""

    folder: Path
    certificates: Certificates | None = None  # None: neither TLS nor node authentication
    port: int = field(default_factory=lambda: free_port())
    proxy_port: int | None = None  # None: nodes connect to the SuperLink itself
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Loopback:
        self.folder.mkdir(parents=True, exist_ok=True)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        trust = f'root-certificates = "{self.certificates.ca}"' if self.certificates else "insecure = true"
        settings = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
        (home / "config.toml").write_text(settings + trust + "\n")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.processes.values():  # all at once, because each takes a while to stop
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for name in list(self.processes):
            self.stop(name)

    @property
    def address(self) -> str:
        """Of the SuperLink, with all of its APIs."""
        return f"{HOST}:{self.port}"

    @property
    def node_address(self) -> str:
        """What nodes connect to."""
        return f"{NODE_HOST}:{self.proxy_port}" if self.proxy_port else self.address

    # ---- processes

    def start_superlink(self, database: bool = True) -> None:
        """With a database it can be killed and started again. Without one it works on a busier computer.

        On an overloaded computer the SQLite file stays locked for too long, and the SuperLink stops starting runs
        (flwr 1.41).
        """
        options = ["--host", HOST, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        options += ["--database", str(self.folder / "state.db")] if database else []
        if self.certificates:
            files = self.certificates
            options += ["--ssl-ca-certfile", str(files.ca), "--ssl-certfile", str(files.server)]
            options += ["--ssl-keyfile", str(files.server_key), "--enable-supernode-auth"]
        options += [] if self.certificates else ["--insecure"]
        self.start("superlink", [COMMANDS / "flower-superlink", *options])
        self.wait_for(lambda: _is_listening(HOST, self.port), "the SuperLink", 300.0)

    def start_proxy(self) -> None:
        """From now on, nodes connect to a proxy that forwards nothing but the Fleet API."""
        if NGINX is None or self.certificates is None:
            raise FederationFailed("the proxy needs certificates and nginx: apt-get install nginx")
        self.proxy_port = free_port(NODE_HOST)
        settings = write_settings(self.folder / "proxy", self.node_address, self.address, self.certificates)
        self.start("proxy", [NGINX, "-c", settings])
        port = self.proxy_port
        self.wait_for(lambda: _is_listening(NODE_HOST, port), "nginx", 300.0)

    def start_supernode(
        self,
        name: str,
        config: Mapping[str, str | int | bool],
        *,
        key: Path | None = None,
        ca: Path | None = None,
        insecure: bool = False,
    ) -> None:
        """With node authentication it needs a registered `key`. `ca` and `insecure` are for tests of refused nodes."""
        options = ["--superlink", self.node_address, "--host", HOST, "--port", str(free_port())]
        options += ["--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
        if self.certificates and not insecure:
            options += ["--root-certificates", str(ca or self.certificates.ca)]
        else:
            options += ["--insecure"]
        options += ["--auth-supernode-private-key", str(key)] if key else []
        self.start(name, [COMMANDS / "flower-supernode", *options])

    def stop(self, name: str, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """Stop the process and all that it started: its whole session."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, with_signal)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)

    def start(self, name: str, command: Sequence[str | Path], folder: Path | None = None) -> None:
        """Start a process that ends with the federation. Its log is in the folder of the federation, or in another."""
        with ((folder or self.folder) / f"{name}.log").open("ab") as log, _default_sigint():
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, start_new_session=True,
            )  # fmt: skip

    @property
    def _environment(self) -> dict[str, str]:
        settings = {
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        path = f"{COMMANDS}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **settings, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    # ---- queries

    def flwr(self, *arguments: str, timeout: float = 300.0) -> str:
        """The output of a `flwr` command."""
        done = subprocess.run(
            [COMMANDS / "flwr", *arguments], env=self._environment, capture_output=True, text=True, check=False,
            timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise FederationFailed(f"flwr {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def register(self, key: Path) -> None:
        self.flwr("supernode", "register", str(key.with_suffix(".pub")), CONNECTION)

    def read_log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def get_node_id(self, name: str) -> int | None:
        """The id that the SuperLink assigned to a node; None if it has none yet."""
        ids = re.findall(r"SuperNode ID: (\d+)", self.read_log(name))
        return int(ids[-1]) if ids else None

    def wait_for(self, is_ready: Callable[[], bool], what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_ready():
            if time.monotonic() > end:
                raise FederationFailed(f"{what} took more than {seconds:.0f} seconds; the logs are in {self.folder}")
            time.sleep(0.2)

    # ---- runs

    def submit(self, app: Path, **config: str | int | float | bool) -> int:
        """Start a run of the app with these settings. Returns the run id."""
        settings = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        output = self.flwr("run", str(app), CONNECTION, "--format", "json", "--run-config", settings)
        return int(json.loads(output)["run-id"])

    def get_status(self, run: int) -> str:
        (entry,) = json.loads(self.flwr("ls", CONNECTION, "--run-id", str(run), "--format", "json"))["runs"]
        return str(entry["status"])

    def wait_for_run(self, run: int, seconds: float) -> None:
        """Wait until a run is completed. The status is queried when the log says that a task finished, else rarely."""
        end, queried = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < end:
            time.sleep(0.5)
            may_be_done = re.search(rf"Finished task \d+ of run {run}", self.read_log("superlink"))
            if not may_be_done and time.monotonic() - queried < STATUS_INTERVAL:
                continue
            status, queried = self.get_status(run), time.monotonic()
            if status == "finished:completed":
                return
            if status.startswith("finished"):
                raise FederationFailed(f"run {run} is {status}\n{self.read_log('superlink')[-3000:]}")
        raise FederationFailed(f"run {run} took more than {seconds:.0f} seconds; the logs are in {self.folder}")


def free_port(host: str = HOST) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _is_listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


@contextmanager
def _default_sigint() -> Iterator[None]:
    """Processes started here do not inherit an ignored SIGINT, as background jobs of a script have it.

    A SuperLink stops its own helper processes with this signal.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
