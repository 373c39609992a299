"""Let several processes compute on one GPU at the same time, by NVIDIA's Multi-Process Service (MPS).

Without it the processes of a GPU take turns, and small networks leave most of it idle. The service belongs to NVIDIA's
driver. It is started for the processes of one command, with sockets of its own, and stopped after them. Where it is
not installed or is running already, nothing is started. A second one would wait for the GPU in vain, so one that a
killed command left behind is stopped first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

CONTROL = "nvidia-cuda-mps-control"
SOCKETS, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"  # how CUDA programs find the service
SYSTEM_SOCKETS = Path("/tmp/nvidia-mps")  # where a service of the whole machine has them
PREFIX, OWNER = "cosdefense-mps-", "owner"  # of our folders of sockets, and the file with the process that made one
SECONDS = 15.0  # for one command to the service


@contextmanager
def shared_gpu(device: torch.device, note: Callable[[str], None] = lambda text: None) -> Iterator[Mapping[str, str]]:
    """Start the service and stop it at the end. Yields what the environment of the processes needs to find it.

    `note` is told if it does not start: the processes are much slower then.
    """
    control = shutil.which(CONTROL)
    runs_already = SOCKETS in os.environ or (SYSTEM_SOCKETS / "control").exists()
    if device.type != "cuda" or control is None or runs_already:
        yield {}
        return
    if _stop_forgotten(control):
        note(f"another command has started {CONTROL}: the processes take turns on the GPU, and are slower")
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        found = _variables(Path(name))
        (Path(name) / OWNER).write_text(str(os.getpid()), encoding="ascii")
        try:
            started = _start(control, found)
            if not started:
                note(f"{CONTROL} did not start: the processes take turns on the GPU, and are slower")
            yield found if started else {}
        finally:
            _send(control, found, "quit")


def _variables(folder: Path) -> dict[str, str]:
    return {SOCKETS: str(folder), LOGS: str(folder)}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Processes that start inside have these variables; this process must not keep them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stop_forgotten(control: str) -> bool:
    """Stop the services of commands that were killed. Whether one of a command that still runs is left."""
    is_left = False
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        if _is_running(owner):
            is_left = True
        else:
            _send(control, _variables(owner.parent), "quit")
            shutil.rmtree(owner.parent, ignore_errors=True)
    return is_left


def _is_running(owner: Path) -> bool:
    """Whether the process still runs that this file names; True where that cannot be known."""
    try:
        os.kill(int(owner.read_text(encoding="ascii")), 0)
    except (ProcessLookupError, FileNotFoundError):
        return False
    except (OSError, ValueError):  # another user's, or just being written
        return True
    return True


def _start(control: str, variables: Mapping[str, str]) -> bool:
    """Whether the service and its server run now: a process that finds a broken one could not use the GPU at all."""
    try:
        subprocess.run(
            [control, "-d"], env={**os.environ, **variables}, check=True, timeout=SECONDS,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    _send(control, variables, f"start_server -uid {os.getuid()}")
    return _send(control, variables, "get_server_list").strip().isdigit()


def _send(control: str, variables: Mapping[str, str], command: str) -> str:
    """The service's answer to a command; empty where it does not run."""
    try:
        done = subprocess.run(
            [control], env={**os.environ, **variables}, input=command + "\n", text=True, timeout=SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
