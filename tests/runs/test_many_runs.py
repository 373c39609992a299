"""Runs shared among processes: nothing is lost, done twice or left behind, however it ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from commands import called, environment
from cosdefense.catalog.options import ConfigError
from cosdefense.data import datasets
from cosdefense.runs import many_runs
from cosdefense.runs.checkpoint import read_checkpoint
from cosdefense.runs.device import n_cores
from cosdefense.runs.execution import Execution
from cosdefense.runs.experiment_file import load
from cosdefense.runs.many_runs import make_runs, run_all
from cosdefense.runs.observer import Job, Observer
from cosdefense.runs.records import complete_lines
from cosdefense.runs.run_folder import is_finished
from held_runs import HELD, held
from worlds import TINY

pytestmark = pytest.mark.slow  # starts processes

TOML = "seeds = [0, 1]" + TINY + '[[defenses]]\nname = "held:mean"\n[[defenses]]\nname = "held:median"\n'

Start = Callable[..., "subprocess.Popen[str]"]


def arguments(*more: str) -> list[str]:
    return [sys.executable, "-m", "cosdefense", "run", "tiny.toml", "--device", "cpu", *more]


def written(folder: Path) -> Path:
    (folder / "tiny.toml").write_text(TOML)
    (folder / "held.py").write_text(HELD)
    return folder


def command(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """In this process, which is one of several that may do the runs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COSDEFENSE_COMMIT", environment()["COSDEFENSE_COMMIT"])
        return called(*arguments(*more)[3:], cwd=folder)


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
    """Whether the process or one that it started is still there; Python's resource tracker ends a moment later."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    return True


def decided(folder: Path) -> dict[str, Any]:
    """Per run all that it decided: records without times, and the final parameters."""
    found = {}
    for records in (folder / "runs" / "tiny").rglob("records.jsonl"):
        header, *lines, summary = (line for line in complete_lines(records) if "resumed" not in line)
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
    process = start(*arguments()[:4], "--jobs", "3", "--json", "--device", "cpu", "--", "tiny.toml")
    assert process.pid not in held(folder, 3)
    (folder / "hold").unlink()
    printed, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert not group_lives(process)
    assert len(decided(alone)) == 4
    assert decided(folder) == decided(alone)
    assert len(list(folder.glob("held-*"))) == 3
    assert len(list((folder / "runs" / "tiny").glob("process-*.log"))) == 3
    ends = [line for line in said.splitlines() if "round 8 of 8" in line]
    runs = [(f"held:{rule}", seed) for rule in ("mean", "median") for seed in (0, 1)]
    assert sorted(line.partition(": round")[0] for line in ends) == [f"{rule} · seed {seed}" for rule, seed in runs]
    assert [(run["defense"], run["seed"]) for run in json.loads(printed)["runs"]] == runs  # and nothing else
    headers = [complete_lines(path)[0] for path in (folder / "runs" / "tiny").rglob("records.jsonl")]
    assert [header["command"] for header in headers] == ["cosdefense run --jobs 3 --json --device cpu -- tiny.toml"] * 4


def test_one_attack_with_two_schedules_is_two_runs(tmp_path: Path) -> None:
    """As in the arena, where the same attack also starts late, under another label."""
    (tmp_path / "tiny.toml").write_text(TINY)
    early = next(load(tmp_path / "tiny.toml", ["training.rounds=2"]).cells())
    late = replace(
        early,
        schedule=replace(early.schedule, attack_start=1),
        attacks=tuple(replace(entry, label=f"late {entry.label}") for entry in early.attacks),
    )
    jobs = [Job(cell, cell.folder(tmp_path), "") for cell in (early, late)]
    run_all(jobs, Execution("cpu"))
    assert all(is_finished(job.folder) for job in jobs)


def test_processes_begin_no_run_before_all_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They start while it is checked, and end with it where a mistake is found."""
    (tmp_path / "tiny.toml").write_text("seeds = [0, 1]" + TINY)
    jobs = [Job(cell, cell.folder(tmp_path), "") for cell in load(tmp_path / "tiny.toml").cells()]
    started: list[int] = []

    def find_mistake(*_: object) -> None:
        started.append(len(multiprocessing.active_children()))
        time.sleep(8)  # longer than they take to start
        raise ConfigError("a mistake")

    monkeypatch.setattr(many_runs, "dry_run", find_mistake)
    with pytest.raises(ConfigError, match="a mistake"):
        run_all(jobs, Execution("cpu", processes=2))
    assert started == [2]
    assert not multiprocessing.active_children()
    assert not any(job.folder.exists() for job in jobs)


def test_what_others_have_finished_is_not_looked_at(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_runs, "run", lambda *_, **__: pytest.fail("it was looked at"))
    make_runs(
        finished(alone),
        lambda _: pytest.fail("it was loaded"),
        torch.device("cpu"),
        {},
        Observer(),
        is_done=lambda job: True,
    )


def test_no_more_processes_than_runs(folder: Path) -> None:
    (folder / "hold").unlink()
    one = ("--set", "seeds=[0]", "--set", 'defenses=[{name="fedavg"}]')
    assert command(folder, *one, "--jobs", "5").returncode == 0
    assert not list((folder / "runs").rglob("process-*.log"))


SHELL = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")  # as shells start background jobs: deaf to SIGINT


@pytest.mark.parametrize(
    ("shell", "ending", "jobs", "n"),
    [((), signal.SIGINT, "auto", min(4, n_cores())), (SHELL, signal.SIGTERM, "2", 2)],
    ids=["ctrl-c", "terminated in the background"],
)
def test_interrupted_every_process_saves_where_it_is(
    alone: Path, folder: Path, start: Start, shell: tuple[str, ...], ending: signal.Signals, jobs: str, n: int
) -> None:
    process = start(*shell, *arguments("--jobs", jobs))
    held(folder, n)
    process.send_signal(ending)
    printed, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert not group_lives(process)
    assert "interrupted; every run is saved: the same command resumes" in said
    assert "Traceback" not in said
    assert printed == ""
    runs = [path for path in (folder / "runs" / "tiny").iterdir() if path.is_dir()]
    assert len(runs) == n
    for run in runs:
        assert read_checkpoint(run / "checkpoint.safetensors").next_round == 5
    (folder / "hold").unlink()
    again = command(folder)
    assert again.returncode == 0, again.stderr
    assert decided(folder) == decided(alone)


def test_what_a_killed_process_leaves_is_finished_by_its_parent(alone: Path, folder: Path, start: Start) -> None:
    process = start(*arguments("--jobs", "2"))
    os.kill(min(held(folder, 2)), signal.SIGKILL)
    (folder / "hold").unlink()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert re.search(r"process (\d) ended early, see runs/tiny/process-\1.log", said)
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


def test_an_execution_has_at_least_one_process() -> None:
    with pytest.raises(ConfigError, match="--jobs must be at least 1, got 0"):
        Execution(processes=0)


def test_auto_is_one_process_per_core_and_no_more_than_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_runs, "n_cores", lambda: 6)
    assert [many_runs.how_many_fit(torch.device("cpu"), n) for n in (0, 1, 4, 6, 99)] == [1, 1, 4, 6, 6]
    room = 2.5 * many_runs.RUN_MEMORY
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(room), int(2 * room)))
    assert [many_runs.how_many_fit(torch.device("cuda"), n) for n in (1, 4)] == [1, 2]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 2000))
    assert many_runs.how_many_fit(torch.device("cuda"), 4) == 1  # it may fit all the same


def finished(alone: Path) -> list[Job]:
    cells = list(load(alone / "tiny.toml").cells())
    jobs = [Job(cell, cell.folder(alone / "runs"), f"run {i}") for i, cell in enumerate(cells)]
    assert all(is_finished(job.folder) for job in jobs)
    return jobs


def test_where_all_is_finished_nothing_is_loaded_or_run(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = finished(alone)
    for module, name in ((datasets, "load"), (many_runs, "run"), (many_runs, "dry_run")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("nothing is left to do"))
    run_all(jobs, Execution("cpu", processes=2))


def test_finished_runs_are_named(alone: Path) -> None:
    done = called(*arguments()[3:], cwd=alone)
    assert done.returncode == 0
    for job in finished(alone):
        assert f"finished earlier, see {job.folder.relative_to(alone)}" in done.stderr


# A script of somebody's own: two experiments, each with its own mine.py, in two processes.
SCRIPT = """
import sys, torch
from pathlib import Path
from cosdefense.runs.device import n_cores
from cosdefense.runs.execution import Execution
from cosdefense.runs.experiment_file import load
from cosdefense.runs.many_runs import run_all
from cosdefense.runs.observer import Job, Observer

class Shown(Observer):
    def run_finished(self, job):
        print("finished", job.label)

def settings():
    return sys.path[:], torch.get_num_threads(), torch.backends.cudnn.deterministic

if __name__ == "__main__":
    before = settings()
    cells = [load(Path(name, "tiny.toml")) for name in ("one", "two")]
    jobs = [Job(cell, cell.folder(Path("runs") / name), name) for cell, name in zip(cells, ("one", "two"))]
    run_all(jobs, Execution("cpu", processes=2), Shown())
    assert settings() == before
"""
MINE = """
from cosdefense import Defense
from cosdefense.aggregators import {rule}
from . import beside

def defense() -> Defense:
    return Defense((beside.Passed(),), {rule}())
"""
PASSED = """
from dataclasses import dataclass
import torch
from cosdefense import Filter, Judgment

@dataclass(frozen=True)
class Passed(Filter):
    def __call__(self, cohort, state):
        return Judgment(torch.zeros_like(cohort.weights), torch.ones_like(cohort.weights)), state
"""


def test_a_script_runs_two_experiments_with_parts_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for name, rule in (("one", "Mean"), ("two", "Median")):
        (folder := tmp_path / name).mkdir()
        (folder / "tiny.toml").write_text(TINY + '[[defenses]]\nname = "mine:defense"\n')
        (folder / "mine.py").write_text(MINE.format(rule=rule))
        (folder / "beside.py").write_text(PASSED)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(OMP_NUM_THREADS="2"), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["finished one", "finished two"]
    assert done.stderr == ""
    for name, rule in (("one", "mean"), ("two", "median")):
        (records,) = (tmp_path / "runs" / name).rglob("records.jsonl")
        header = complete_lines(records)[0]
        (described,) = header["experiment"]["defenses"]
        assert described["aggregator"] == {"name": rule}
        assert [part["name"] for part in described["filters"]] == ["beside:Passed"]
        assert header["device"] == "cpu (1 threads)"  # two threads, shared by two processes
