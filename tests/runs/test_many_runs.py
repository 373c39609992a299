"""Runs shared among processes: nothing is lost, done twice or left behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from commands import called
from cosdefense.catalog.options import ConfigError
from cosdefense.data import datasets
from cosdefense.runs import many_runs
from cosdefense.runs.checkpoint import read_checkpoint
from cosdefense.runs.execution import Execution
from cosdefense.runs.experiment import load
from cosdefense.runs.many_runs import Job, run_all
from cosdefense.runs.records import complete_lines
from cosdefense.runs.run_folder import is_finished
from worlds import TINY

pytestmark = pytest.mark.slow  # starts processes

TOML = "seeds = [0, 1]" + TINY + '[[defenses]]\nname = "held:mean"\n[[defenses]]\nname = "held:median"\n'

# While the file "hold" lies there, every process stops in the sixth round of its first run, and says who it is.
HELD = """
import os, time
from dataclasses import dataclass
from pathlib import Path
import torch
from cosdefense import Defense, Filter, Judgment
from cosdefense.aggregators import Mean, Median

@dataclass(frozen=True)
class Held(Filter):
    def init(self):
        return 0

    def __call__(self, cohort, state):
        if state == 5 and Path("hold").exists():
            Path(f"held-{os.getpid()}").touch()
        while state == 5 and Path("hold").exists():
            time.sleep(0.01)
        return Judgment(torch.zeros_like(cohort.weights), torch.ones_like(cohort.weights)), state + 1

def mean():
    return Defense((Held(),), Mean())

def median():
    return Defense((Held(),), Median())
"""

Start = Callable[..., "subprocess.Popen[str]"]


def arguments(*more: str) -> list[str]:
    return [sys.executable, "-m", "cosdefense", "run", "tiny.toml", "--device", "cpu", *more]


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


def written(folder: Path) -> Path:
    (folder / "tiny.toml").write_text(TOML)
    (folder / "held.py").write_text(HELD)
    return folder


def command(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(*more), cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hold").touch()
    return written(tmp_path)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts commands in process groups of their own, of which nobody may be left in the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if group_lives(process):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def group_lives(process: subprocess.Popen[str]) -> bool:
    """Whether the process or a helper of it is still there."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def held(folder: Path, n: int) -> set[int]:
    """The processes that have stopped in the middle of a run, once there are so many."""
    deadline = time.monotonic() + 120
    while len(found := {int(path.name.removeprefix("held-")) for path in folder.glob("held-*")}) < n:
        assert time.monotonic() < deadline, f"{len(found)} of {n} processes have come to a run"
        time.sleep(0.02)
    return found


def decided(folder: Path) -> dict[str, Any]:
    """Per run all that it decided: records without times, and the final parameters."""
    found = {}
    for records in (folder / "runs" / "tiny").rglob("records.jsonl"):
        header, *lines, summary = complete_lines(records)
        lines.append(dict(summary["summary"]))
        plain = [{k: v for k, v in line.items() if k not in ("seconds", "peak_memory")} for line in lines]
        with safe_open(records.parent / "checkpoint.safetensors", framework="pt") as file:
            params = file.get_tensor("params").numpy().tobytes()
        found[records.parent.name] = ({k: v for k, v in header.items() if k != "command"}, plain, params)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of it."""
    folder = written(tmp_path_factory.mktemp("alone"))
    done = command(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_three_processes_give_the_same_bits_as_one_and_do_every_run_once(
    alone: Path, folder: Path, start: Start
) -> None:
    process = start(*arguments("--jobs", "3"))
    assert process.pid in held(folder, 3)
    (folder / "hold").unlink()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert not group_lives(process)
    assert len(decided(alone)) == 4
    assert decided(folder) == decided(alone)
    assert len(list(folder.glob("held-*"))) == 3
    logs = [path.read_text() for path in (folder / "runs" / "tiny").glob("process-*.log")]
    assert len(logs) == 2
    ends = [line for text in (said, *logs) for line in text.splitlines() if "round 8 of 8" in line]
    labels = [f"held:{rule} · seed {seed}" for rule in ("mean", "median") for seed in (0, 1)]
    assert sorted(line.partition(": round")[0] for line in ends) == labels


def test_json_stays_clean_and_helpers_understand_what_the_parent_did(folder: Path, start: Start) -> None:
    """Behind `--` everything is a file name, even what looks like an option."""
    process = start(*arguments()[:4], "--jobs", "2", "--json", "--device", "cpu", "--", "tiny.toml")
    held(folder, 2)
    (folder / "hold").unlink()
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    runs = json.loads(printed)["runs"]
    assert [(run["defense"], run["seed"]) for run in runs] == [
        (f"held:{rule}", seed) for rule in ("mean", "median") for seed in (0, 1)
    ]
    headers = [complete_lines(path)[0] for path in (folder / "runs" / "tiny").rglob("records.jsonl")]
    assert [header["command"] for header in headers] == ["cosdefense run --jobs 2 --json --device cpu -- tiny.toml"] * 4


def test_no_more_processes_than_runs(folder: Path) -> None:
    (folder / "hold").unlink()
    one = ("--set", "seeds=[0]", "--set", 'defenses=[{name="fedavg"}]')
    assert command(folder, *one, "--jobs", "5").returncode == 0
    assert not list((folder / "runs").rglob("process-*.log"))


SHELL = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")  # as shells start background jobs: deaf to SIGINT


@pytest.mark.parametrize(
    ("shell", "ending"),
    [((), signal.SIGINT), (SHELL, signal.SIGTERM)],
    ids=["ctrl-c", "terminated in the background"],
)
def test_interrupted_every_process_saves_where_it_is(
    alone: Path, folder: Path, start: Start, shell: tuple[str, ...], ending: signal.Signals
) -> None:
    process = start(*shell, *arguments("--jobs", "2"))
    held(folder, 2)
    process.send_signal(ending)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert not group_lives(process)
    assert "interrupted; nothing is lost: the same command goes on where it stopped" in said
    assert "Traceback" not in said
    assert printed == ""
    runs = [path for path in (folder / "runs" / "tiny").iterdir() if path.is_dir()]
    assert len(runs) == 2
    for run in runs:
        assert read_checkpoint(run / "checkpoint.safetensors").next_round == 5
    (folder / "hold").unlink()
    again = command(folder)
    assert again.returncode == 0, again.stderr
    assert decided(folder) == decided(alone)


def test_what_a_killed_helper_leaves_is_finished_by_the_parent(alone: Path, folder: Path, start: Start) -> None:
    process = start(*arguments("--jobs", "2"))
    (helper,) = held(folder, 2) - {process.pid}
    os.kill(helper, signal.SIGKILL)
    (folder / "hold").unlink()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "process 2 ended early" in said
    assert str(Path("runs", "tiny", "process-2.log")) in said
    assert decided(folder) == decided(alone)


def test_jobs_are_a_number_or_auto(folder: Path) -> None:
    done = called(*arguments("--jobs", "many")[3:], cwd=folder)
    assert done.returncode == 2
    assert done.stderr.strip() == "error: --jobs must be a number or auto, got 'many'"


@pytest.mark.parametrize("jobs", ["0", "-2"])
def test_no_processes_at_all_is_a_mistake(folder: Path, jobs: str) -> None:
    done = called(*arguments("--jobs", jobs)[3:], cwd=folder)
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: --jobs must be at least 1, got {jobs}"
    assert not (folder / "runs").exists()


def test_the_workplace_knows_its_own_rule() -> None:
    with pytest.raises(ConfigError, match="--jobs must be at least 1, got 0"):
        Execution(processes=0)


def test_auto_is_one_process_per_core_and_no_more_than_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert [many_runs.how_many_fit(torch.device("cpu"), n) for n in (0, 1, 4, 6, 99)] == [1, 1, 4, 6, 6]
    room = 2.5 * many_runs.RUN_MEMORY
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(room), int(2 * room)))
    assert [many_runs.how_many_fit(torch.device("cuda"), n) for n in (1, 4)] == [1, 2]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 2000))
    assert many_runs.how_many_fit(torch.device("cuda"), 4) == 1  # it may fit all the same


def test_auto_starts_as_many_as_fit(folder: Path, start: Start) -> None:
    expected = min(4, len(os.sched_getaffinity(0)))
    process = start(*arguments("--jobs", "auto"))
    held(folder, expected)
    (folder / "hold").unlink()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert len(list((folder / "runs" / "tiny").glob("process-*.log"))) == expected - 1


def finished(alone: Path) -> list[Job]:
    cells = list(load(alone / "tiny.toml").cells())
    jobs = [Job(cell, cell.folder(alone / "runs"), f"run {i}") for i, cell in enumerate(cells)]
    assert all(is_finished(job.folder) for job in jobs)
    return jobs


def test_where_all_is_finished_nothing_is_loaded_or_run(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = finished(alone)
    for module, name in ((datasets, "load"), (many_runs, "run"), (many_runs, "dry_run"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("nothing is left to do"))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    run_all(jobs, Execution("cpu", processes=2), alone / "runs" / "tiny")
    said = capsys.readouterr().err
    for job in jobs:
        assert f"{job.label}: finished earlier, see {job.folder}" in said


@pytest.mark.parametrize(("cores", "processes", "share"), [(8, 2, 4), (8, 3, 2), (2, 5, 1)])
def test_cores_are_shared_out_once(
    alone: Path, monkeypatch: pytest.MonkeyPatch, cores: int, processes: int, share: int
) -> None:
    """By the process that starts the others; a worker keeps the share that it was started with."""
    threads: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    for worker in (False, True):
        run_all(finished(alone), Execution("cpu", None, processes, worker), alone / "runs" / "tiny")
    assert threads == [share]
