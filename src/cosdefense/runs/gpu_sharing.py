"""Let several processes compute on one GPU at the same time, by NVIDIA's Multi-Process Service (MPS).

Without it the processes of a GPU take turns, and small networks leave most of it idle. The service belongs to NVIDIA's
driver. It is started for the processes of one command, with sockets of its own, and stopped after them. Where it is
not installed, does not start or is running already, nothing is started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

CONTROL = "nvidia-cuda-mps-control"
SOCKETS, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"  # how CUDA programs find the service
SYSTEM_SOCKETS = Path("/tmp/nvidia-mps")  # where a service of the whole machine has them
SECONDS = 30.0  # for one command to the service


@contextmanager
def shared_gpu(device: torch.device) -> Iterator[Mapping[str, str]]:
    """Start the service and stop it at the end. Yields what the environment of the processes needs to find it."""
    control = shutil.which(CONTROL)
    runs_already = SOCKETS in os.environ or (SYSTEM_SOCKETS / "control").exists()
    if device.type != "cuda" or control is None or runs_already:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        found = {SOCKETS: folder, LOGS: folder}
        try:
            yield found if _start(control, found) else {}
        finally:
            _send(control, found, "quit")


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
