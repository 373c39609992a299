"""Runs on a real Ray cluster, started here on the loopback interface: the same bits, whatever dies on the way."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest

from commands import called, environment
from cosdefense.catalog.extras import MissingExtra, install_hint
from cosdefense.catalog.options import ConfigError
from cosdefense.runs.checkpoint import read_checkpoint
from cosdefense.runs.execution import Execution
from cosdefense.runs.records import complete_lines, read_run
from forked import run_code, run_command
from worlds import TINY

pytestmark = pytest.mark.slow  # starts clusters

GRID = TINY + '[[defenses]]\nname = "beside:mean"\n[[defenses]]\nname = "beside:median"\n'
FAILING = TINY + "".join(f'[[defenses]]\nname = "beside:{name}"\n' for name in ("broken", "deadly", "mean"))

# Parts in a file beside the experiment, as a user may have. They write down every round that they see, and stop in the
# round that the file "hold" names, until it is gone.
BESIDE = """
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
import torch
from cosdefense import Defense, Filter, Judgment
from cosdefense.aggregators import Mean, Median

FOLDER = Path({folder!r})
HOLD = FOLDER / "hold"

@dataclass(frozen=True)
class Watched(Filter):
    label: str

    def init(self):
        return 0

    def __call__(self, cohort, state):
        if cohort.updates.any():  # not the dry run
            with (FOLDER / f"{{self.label}}.rounds").open("a") as file:
                file.write(f"{{os.getpid()}} {{state}}\\n")
            self.misbehave(state)
        return Judgment(torch.zeros_like(cohort.weights), torch.ones_like(cohort.weights)), state + 1

    def misbehave(self, state):
        if self.label == "broken" and state == 2:
            raise ValueError("no luck today")
        if self.label == "deadly" and state == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        while read_held_round() == str(state):
            time.sleep(0.01)

def read_held_round():
    try:  # the test may remove the file at any moment
        return HOLD.read_text()
    except FileNotFoundError:
        return None

def mean() -> Defense:
    return Defense((Watched("mean"),), Mean())

def median() -> Defense:
    return Defense((Watched("median"),), Median())

def broken() -> Defense:
    return Defense((Watched("broken"),), Mean())

def deadly() -> Defense:
    return Defense((Watched("deadly"),), Mean())
"""


def ray_environment() -> dict[str, str]:
    # By default workers give way to everybody (15), and Ray on Linux takes 127.0.0.1 for the machine's other address.
    return environment(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")


def written(folder: Path, toml: str = GRID) -> Path:
    (folder / "tiny.toml").write_text(toml)
    (folder / "beside.py").write_text(BESIDE.format(folder=str(folder)))
    return folder


def arguments(*more: str) -> list[str]:
    return [sys.executable, "-m", "cosdefense", "run", "tiny.toml", "--device", "cpu", *more]


def command(folder: Path, *more: str, **environment_: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments(*more)[3:], cwd=folder, **(ray_environment() | environment_))


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """A cluster that other processes can connect to; with a key, because it could run anything for anybody."""
    pytest.importorskip("ray", reason='Ray, the extra "ray", is not installed here')
    if " " in sys.prefix:  # ray 2.60 hands the path of Python to a shell as it is, and ends when that fails
        pytest.skip("a head node of Ray ends at once where Ray is installed below a path with a space")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    key = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: sockets are in it
    options = ("--include-dashboard=false", "--num-cpus=2", "--object-store-memory=100000000", f"--temp-dir={folder}")
    words = ("start", "--head", "--block", f"--port={address.partition(':')[2]}", "--node-ip-address=127.0.0.1")
    with (folder / "log").open("w") as log:
        head = subprocess.Popen(
            [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *words, *options],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=ray_environment() | key, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while "Ray runtime started" not in (said := (folder / "log").read_text()):
            assert head.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        yield {"address": address, **key}
    finally:
        head.terminate()
        try:
            head.wait(300)
        finally:
            if members(head.pid):
                os.killpg(head.pid, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)


def members(group: int) -> list[int]:
    """The processes of this group or session that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group, session, *_ = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z" and str(group) in (its_group, session):
            found.append(int(path.parent.name))
    return found


def listening(process: int) -> list[str]:
    """The addresses at which this process can be reached."""
    inodes = set()
    for path in Path(f"/proc/{process}/fd").glob("*"):
        with suppress(FileNotFoundError):  # closed just now
            inodes.add(os.readlink(path))
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in inodes:
                packed = b"".join(bytes.fromhex(local[i : i + 8])[::-1] for i in range(0, len(local) - 5, 8))
                address = ip_address(packed)
                mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
                found.append(str(mapped or address))
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process on this machine makes of it."""
    folder = written(tmp_path_factory.mktemp("here"))
    done = command(folder)
    assert done.returncode == 0, done.stderr
    return folder


def decided_by(run: Path) -> tuple[object, ...]:
    """All that a finished run decided: header, records without times, the checkpoint."""
    header, *lines, summary = (line for line in complete_lines(run / "records.jsonl") if "resumed" not in line)
    lines.append(dict(summary["summary"]))
    plain = [{k: v for k, v in line.items() if k not in ("seconds", "peak_memory")} for line in lines]
    checkpoint = read_checkpoint(run / "checkpoint.safetensors")
    state = (checkpoint.next_round, checkpoint.metadata, checkpoint.tensors["params"].numpy().tobytes())
    return {k: v for k, v in header.items() if k != "command"}, plain, state, (run / "experiment.toml").read_text()


def decided(folder: Path) -> dict[str, tuple[object, ...]]:
    return {run.name: decided_by(run) for run in (folder / "runs" / "tiny").iterdir()}


def rounds_seen(folder: Path, name: str) -> list[tuple[int, int]]:
    """Who saw which round, in order."""
    path = folder / f"{name}.rounds"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(pid), int(state)) for pid, state in map(str.split, lines)]


def held(folder: Path, process: subprocess.Popen[str], state: int) -> dict[str, int]:
    """The processes in which both runs have come to this round."""
    deadline = time.monotonic() + 300
    while True:
        found = {name: seen[-1] for name in ("mean", "median") if (seen := rounds_seen(folder, name))}
        if [state for _, state in found.values()] == [state, state]:
            return {name: pid for name, (pid, _) in found.items()}
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"the runs have come to {found}, not to round {state}"
        time.sleep(0.05)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Commands that were started, of which nobody is left in the end."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def start(folder: Path, *more: str, **environment_: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments(*more), cwd=folder, env=ray_environment() | environment_, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_ray_of_its_own_gives_the_same_bits_hears_nobody_and_is_gone_afterwards(
    here: Path, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    pytest.importorskip("ray", reason='Ray, the extra "ray", is not installed here')
    (hold := written(tmp_path) / "hold").write_text("3")
    inherited = {
        name: value for name, value in ray_environment().items() if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    }
    process = subprocess.Popen(
        arguments("--ray", "local"), cwd=tmp_path, env=inherited, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    started.append(process)
    held(tmp_path, process, 3)
    found = [address for pid in members(process.pid) for address in listening(pid)]
    assert found
    assert all(ip_address(address).is_loopback for address in found), found
    hold.unlink()
    printed, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert decided(tmp_path) == decided(here)
    assert len(decided(here)) == 2
    assert "beside:mean: round 8 of 8, accuracy" in said
    assert "beside:median" in printed
    assert not members(process.pid)


def test_interrupted_then_robbed_of_a_worker_it_ends_in_the_same_bits(
    cluster: dict[str, str], here: Path, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    folder, hold = written(tmp_path), tmp_path / "hold"
    key = {name: value for name, value in cluster.items() if name != "address"}
    hold.write_text("3")
    started.append(first := start(folder, "--ray", cluster["address"], **key))
    held(folder, first, 3)
    os.killpg(first.pid, signal.SIGINT)  # Ctrl-C reaches every process of a terminal
    time.sleep(4)  # until the workers have been told, which nothing shows from outside
    hold.write_text("6")  # the signal takes effect between two rounds
    printed, said = first.communicate(timeout=300)
    assert first.returncode == 130, said
    assert "interrupted; every run is saved: the same command resumes" in said
    assert "Traceback" not in said
    assert printed == ""
    for path in (folder / "runs" / "tiny").iterdir():
        assert read_checkpoint(path / "checkpoint.safetensors").next_round == 4
        assert len(read_run(path).rounds) == 4

    started.append(second := start(folder, "--ray", cluster["address"], **key))
    victim = held(folder, second, 6)["mean"]
    os.kill(victim, signal.SIGKILL)
    hold.unlink()
    _, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    assert "beside:mean: its worker died, resuming from the last checkpoint" in said
    assert decided(folder) == decided(here)
    seen = rounds_seen(folder, "mean")
    assert [state for _, state in seen] == [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7]  # never again from the beginning
    assert victim not in [pid for pid, _ in seen[-4:]]
    assert [state for _, state in rounds_seen(folder, "median")] == list(range(8))


def test_runs_that_fail_are_reported_and_the_others_finished(
    cluster: dict[str, str], here: Path, tmp_path: Path
) -> None:
    key = {name: value for name, value in cluster.items() if name != "address"}
    done = command(written(tmp_path, FAILING), "--ray", cluster["address"], **key)
    assert done.returncode == 1, done.stderr
    assert "error: 2 of 3 runs failed" in done.stderr
    assert "beside:broken: ValueError: no luck today" in done.stderr
    assert "beside:deadly: its worker died 4 times in a row" in done.stderr
    assert "Traceback" not in done.stderr
    (log,) = (tmp_path / "runs" / "tiny").glob("noise-beside-broken-*/failure.log")
    assert 'beside.py", line' in log.read_text()
    assert log.read_text().endswith("ValueError: no luck today")
    assert "\x1b[" not in log.read_text()
    assert [state for _, state in rounds_seen(tmp_path, "broken")] == [0, 1, 2]  # an error is not retried
    assert [state for _, state in rounds_seen(tmp_path, "deadly")] == 4 * [0, 1, 2]
    (finished,) = (tmp_path / "runs" / "tiny").glob("noise-beside-mean-*")
    assert decided_by(finished) == decided(here)[finished.name]


def test_what_the_cluster_cannot_do_is_one_line(cluster: dict[str, str], tmp_path: Path) -> None:
    key = {name: value for name, value in cluster.items() if name != "address"}
    done = command(written(tmp_path), "--ray", cluster["address"], "--device", "cuda", **key)
    assert done.returncode == 2
    assert done.stderr.strip() == "error: device cuda was asked for, but the Ray cluster has no GPU"


def test_nobody_at_the_address_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='Ray, the extra "ray", is not installed here')
    with socket.socket() as closed:  # bound, and not listening
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        done = called(*arguments("--ray", address)[3:], cwd=written(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no Ray cluster answers at {address}")
    assert len(done.stderr.splitlines()) == 1


def test_without_ray_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from cosdefense.cli import main; main()"
    done = run_code(code, written(tmp_path), "run", "tiny.toml", "--ray", "local", **ray_environment())
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: --ray needs Ray, which was not found: {install_hint('ray')}"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"processes": 2}, "--jobs is for this machine"),
        ({"processes": None}, "--jobs is for this machine"),
        ({"device": "cuda:1"}, "with --ray the device must be auto, cpu or cuda, got 'cuda:1'"),
        ({"gpu_share": 0.0}, "--gpu-share must be above 0 and at most 1, got 0"),
        ({"gpu_share": 1.5}, "--gpu-share must be above 0 and at most 1, got 1.5"),
    ],
)
def test_a_cluster_takes_only_some_options(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Execution(ray="local", **options)


def test_without_ray_the_execution_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"\.\[ray\]"):
        Execution(ray="local")
