"""Run many cells: in one process, or shared among several, each of which takes what nobody else is at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from rich.progress import Progress

from ..cli import console
from ..data import datasets
from ..data.datasets import Dataset
from . import provenance
from .execution import WORKER, Execution
from .experiment import Experiment
from .prepare import choose_device, dry_run
from .run_folder import RunInUse, is_finished
from .single_run import Play, federated, run

RUN_MEMORY = 8 * 2**30  # bytes that a run on a GPU is given room for: generous, nobody knows before it has run


@dataclass(frozen=True)
class Job:
    """One run, where it is kept, and how it is called while it runs."""

    cell: Experiment
    folder: Path
    label: str
    play: Play = federated


def run_all(jobs: Sequence[Job], place: Execution, logs: Path) -> None:
    """Finish every job. What is done is skipped, what was interrupted goes on; Ctrl-C loses nothing."""
    left = [job for job in jobs if not is_finished(job.folder)]
    if place.ray is None:
        device = choose_device(place.device)
        processes = how_many_fit(device, len(left)) if place.processes is None else place.processes
        if processes > 1 and device.type == "cpu" and not place.worker:  # a worker was given its share
            torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    _say_finished([job for job in jobs if job not in left])
    if not left:
        return
    with console.progress_bars() as bars:
        data = _Data(place.data_dir, bars)
        if not place.worker:
            for experiment in _grids(left):
                dry_run(experiment, data(experiment.data.dataset))
        if place.ray is not None:
            from .ray.driver import run_on_ray

            run_on_ray(left, place, data, _origin(), bars)
            return
        several = processes > 1 or place.worker
        with _helpers(0 if place.worker else min(processes, len(left)) - 1, logs) as helpers:
            _work(left, data, device, bars, shared=several)
            _wait(helpers, left, logs, bars)
        if not place.worker:  # what a helper that broke down left behind
            _work([job for job in left if not is_finished(job.folder)], data, device, bars, shared=False)


def how_many_fit(device: torch.device, n: int) -> int:
    """Processes for so many runs: one per core, and on a GPU no more than it has memory for."""
    fit = len(os.sched_getaffinity(0))
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        fit = min(fit, free // RUN_MEMORY)
    return max(1, min(fit, n))


def _grids(jobs: Sequence[Job]) -> Iterator[Experiment]:
    """The jobs' experiments, those of one name as one."""
    for name in dict.fromkeys(job.cell.name for job in jobs):
        cells = [job.cell for job in jobs if job.cell.name == name]
        attacks = tuple(dict.fromkeys(entry for cell in cells for entry in cell.attacks))
        defenses = tuple(dict.fromkeys(entry for cell in cells for entry in cell.defenses))
        yield replace(cells[0], attacks=attacks, defenses=defenses)


class _Data:
    """Datasets, each loaded when it is first needed."""

    def __init__(self, folder: Path | None, bars: Progress) -> None:
        progress = console.download_progress(bars)
        self._load = cache(lambda name: datasets.load(name, folder, progress=progress))

    def __call__(self, name: str) -> Dataset:
        return self._load(name)


def _work(jobs: Sequence[Job], data: _Data, device: torch.device, bars: Progress, *, shared: bool) -> None:
    overall = bars.add_task("runs", total=len(jobs), note="") if len(jobs) > 1 else None
    notes = _origin()
    for number, job in enumerate(jobs):
        if overall is not None:
            bars.update(overall, completed=number)
        try:  # closed, a run saves where it is
            with closing(
                run(job.cell, job.folder, data(job.cell.data.dataset), device, play=job.play, notes=notes)
            ) as records:
                console.follow(bars, job.label, job.cell.training.rounds, records)
        except RunInUse:
            if not shared:
                raise
    if overall is not None:
        bars.update(overall, completed=len(jobs))


def _origin() -> dict[str, str]:
    """For the header of the records: where they come from."""
    command = {"command": provenance.command([word for word in sys.argv[1:] if word != WORKER])}
    return command | ({"commit": found} if (found := provenance.commit()) else {})


@contextmanager
def _helpers(n: int, logs: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The same command in other processes; the runs' locks keep them out of each other's way."""
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(2, n + 2):
            logs.mkdir(parents=True, exist_ok=True)
            threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
            with _log(logs, number).open("wb") as log:
                command, *rest = sys.argv[1:]  # behind "--" an option would be taken for a file
                arguments = [sys.executable, "-m", "cosdefense", command, WORKER, *rest]
                helpers.append(
                    subprocess.Popen(
                        arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | threads
                    )
                )
        yield helpers
    finally:
        for helper in helpers:
            if helper.poll() is None:
                helper.terminate()  # it saves where it is; a shell's background jobs are deaf to SIGINT
        for helper in helpers:
            try:
                helper.wait(30)
            except subprocess.TimeoutExpired:
                helper.kill()  # a run that is killed goes on from its last checkpoint
                helper.wait()


def _wait(helpers: Sequence[subprocess.Popen[bytes]], jobs: Sequence[Job], logs: Path, bars: Progress) -> None:
    if not helpers:
        return
    bar = bars.add_task("runs of other processes", total=len(jobs), note="")
    finished: set[Path] = set()
    while any(helper.poll() is None for helper in helpers):
        finished |= {job.folder for job in jobs if job.folder not in finished and is_finished(job.folder)}
        bars.update(bar, completed=len(finished))
        time.sleep(0.5)
    for number, helper in enumerate(helpers, start=2):
        if helper.returncode:
            console.note(f"process {number} ended early, see {_log(logs, number)}")


def _log(logs: Path, number: int) -> Path:
    return logs / f"process-{number}.log"


def _say_finished(jobs: Sequence[Job]) -> None:
    if len(jobs) > 8:
        console.err.print(f"{len(jobs)} runs were finished earlier, see {jobs[0].folder.parent}", soft_wrap=True)
        return
    for job in jobs:
        console.err.print(f"{job.label}: finished earlier, see {job.folder}", soft_wrap=True)
