"""Make many runs: in this process, shared among several processes, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..data import Dataset
from . import provenance
from .data_section import DatasetLoader, identify_dataset, load_dataset
from .device import choose_device, n_cores, threads
from .execution import Execution
from .experiment import Experiment
from .observer import Job, Observer
from .prepare import dry_run
from .run_folder import is_finished
from .run_lock import RunInUse
from .single_run import run

RUN_MEMORY = 8 * 2**30  # bytes of a GPU that each run is given: generous, because nobody knows before it has run

LoadData = Callable[[Experiment], Dataset]


def run_all(
    jobs: Sequence[Job],
    execution: Execution = Execution(),
    observer: Observer | None = None,
    *,
    notes: Mapping[str, Any] | None = None,
    logs: Path | None = None,
) -> None:
    """Finish every job. What is done is skipped, what was interrupted is resumed; Ctrl-C loses nothing.

    Several processes are spawned, so that a script that asks for them must be importable: `if __name__ == "__main__"`.
    What they print goes to files in the folder `logs`, by default the one that holds the first run's. `notes` go into
    the header of every run; by default the commit of this code.
    """
    observer = observer or Observer()
    device = choose_device(execution.device) if execution.ray is None else None  # a mistake is found before any work
    finished = [is_finished(job.folder) for job in jobs]
    todo = [job for job, done in zip(jobs, finished, strict=True) if not done]
    observer.jobs_started(todo, [job for job, done in zip(jobs, finished, strict=True) if done])
    if not todo:
        return
    load = DatasetLoader(partial(load_dataset, data_dir=execution.data_dir, progress=observer.downloading))
    grids = [(experiment, load(experiment)) for experiment in _grids(todo)]  # downloaded once, before others need it
    notes = provenance.commit_note() if notes is None else notes
    if device is None:
        _check(grids)
        from .ray.driver import run_on_ray

        run_on_ray(todo, execution, load, notes, observer)
        return
    n_processes = how_many_fit(device, len(todo)) if execution.processes is None else execution.processes
    n_processes = min(n_processes, len(todo))
    if n_processes == 1:
        _check(grids)
        make_runs(todo, load, device, notes, observer)
        return
    from .processes import run_in_processes

    share = max(1, torch.get_num_threads() // n_processes) if device.type == "cpu" else None
    run_in_processes(
        todo, n_processes, device=device, n_threads=share, data_dir=execution.data_dir, notes=notes, observer=observer,
        logs=logs or todo[0].folder.parent, check=partial(_check, grids),
    )  # fmt: skip
    with threads(share) if share else nullcontext():  # what a process that broke down left undone
        make_runs([job for job in todo if not is_finished(job.folder)], load, device, notes, observer)


def make_runs(
    jobs: Sequence[Job],
    load: LoadData,
    device: torch.device,
    notes: Mapping[str, Any],
    observer: Observer,
    *,
    skip_in_use: bool = False,
    is_done: Callable[[Job], bool] = lambda job: False,
) -> None:
    """Make these runs one after the other, in this process. Those that another process is making may be skipped.

    Jobs that `is_done` knows to be finished are not even looked at: that would take reading all of their records.
    """
    loaded, dataset = None, None  # one at a time: a GPU has little memory
    for job in jobs:
        if is_done(job):
            continue
        if dataset is None or loaded != identify_dataset(job.cell):
            loaded, dataset = identify_dataset(job.cell), load(job.cell).to(device)
        try:
            was_run = run(
                job.cell, job.folder, dataset, device, notes=notes,
                on_start=partial(observer.run_started, job), on_round=partial(observer.round_recorded, job),
            )  # fmt: skip
            if was_run:
                observer.run_finished(job)
        except RunInUse:
            if not skip_in_use:
                raise


def how_many_fit(device: torch.device, n: int) -> int:
    """Processes for so many runs: one per core, and on a GPU no more than it has memory for."""
    fit = n_cores()
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        fit = min(fit, free // RUN_MEMORY)
    return max(1, min(fit, n))


def _check(grids: Sequence[tuple[Experiment, Dataset]]) -> None:
    for experiment, dataset in grids:
        dry_run(experiment, dataset)


def _grids(jobs: Sequence[Job]) -> Iterator[Experiment]:
    """The jobs' experiments, those of one name, source and schedule as one."""
    keys = [(job.cell.name, job.cell.source, job.cell.schedule) for job in jobs]
    for key in dict.fromkeys(keys):
        cells = [job.cell for job, own in zip(jobs, keys, strict=True) if own == key]
        attacks = tuple(dict.fromkeys(entry for cell in cells for entry in cell.attacks))
        defenses = tuple(dict.fromkeys(entry for cell in cells for entry in cell.defenses))
        yield replace(cells[0], attacks=attacks, defenses=defenses)
