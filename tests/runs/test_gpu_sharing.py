"""The service that lets processes share a GPU. NVIDIA's program is replaced by one that records its commands."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cosdefense.runs.gpu_sharing import CONTROL, LOGS, OWNER, PREFIX, SOCKETS, SYSTEM_SOCKETS, environment, shared_gpu

PROGRAM = """#!/bin/sh
command="$*"
[ -n "$command" ] || command=$(cat)
[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && found=True || found=False
echo "$command $found" >> "{log}"
if [ "$command" = get_server_list ]; then echo "{servers}"; fi
"""


GPU = torch.device("cuda")
Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    if (SYSTEM_SOCKETS / "control").exists():
        pytest.skip("MPS runs on this machine")
    monkeypatch.delenv(SOCKETS, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def write(servers: str) -> Path:
        log = tmp_path / "log"
        program = tmp_path / CONTROL
        program.write_text(PROGRAM.format(log=log, servers=servers))
        program.chmod(0o755)
        return log

    return write


def test_the_service_runs_while_the_processes_do(install: Install) -> None:
    log = install("4711")
    with shared_gpu(GPU) as variables:
        assert set(variables) == {SOCKETS, LOGS}
        assert log.read_text().splitlines() == [
            "-d True",
            f"start_server -uid {os.getuid()} True",
            "get_server_list True",
        ]
    assert log.read_text().splitlines()[3:] == ["quit True"]
    assert not Path(variables[SOCKETS]).exists()


def test_processes_do_without_a_service_whose_server_does_not_start(install: Install) -> None:
    log, notes = install(""), list[str]()
    with shared_gpu(GPU, notes.append) as variables:
        assert variables == {}
    assert notes == [f"{CONTROL} did not start: the processes take turns on the GPU, and are slower"]
    assert log.read_text().splitlines()[-1] == "quit True"


def test_a_service_that_runs_already_is_used_and_left_alone(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    log = install("4711")
    monkeypatch.setenv(SOCKETS, "/elsewhere")
    with shared_gpu(GPU) as variables:
        assert variables == {}
    assert not log.exists()


def forget_service(folder: Path, process: int) -> None:
    folder.mkdir()
    (folder / OWNER).write_text(str(process))


def test_a_service_that_a_killed_command_left_is_stopped_first(install: Install, tmp_path: Path) -> None:
    log, ended = install("4711"), subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    forget_service(tmp_path / f"{PREFIX}old", ended.pid)
    with shared_gpu(GPU) as variables:
        assert Path(variables[SOCKETS]).name != f"{PREFIX}old"
        assert log.read_text().splitlines()[:2] == ["quit True", "-d True"]
    assert not (tmp_path / f"{PREFIX}old").exists()


def test_the_service_of_another_command_is_left_alone(install: Install, tmp_path: Path) -> None:
    log, notes = install("4711"), list[str]()
    forget_service(tmp_path / f"{PREFIX}other", os.getpid())
    with shared_gpu(GPU, notes.append) as variables:
        assert variables == {}
    assert notes == [f"another command has started {CONTROL}: the processes take turns on the GPU, and are slower"]
    assert not log.exists()
    assert (tmp_path / f"{PREFIX}other").exists()


def test_a_cpu_needs_no_service(install: Install) -> None:
    log = install("4711")
    with shared_gpu(torch.device("cpu")) as variables:
        assert variables == {}
    assert not log.exists()


def test_variables_are_gone_after_the_processes_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOGS, "before")
    monkeypatch.delenv(SOCKETS, raising=False)
    with environment({SOCKETS: "sockets", LOGS: "logs"}):
        assert (os.environ[SOCKETS], os.environ[LOGS]) == ("sockets", "logs")
    assert SOCKETS not in os.environ
    assert os.environ[LOGS] == "before"
