"""cosdefense run: every run of an experiment's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..runs.execution import Execution
from . import console, results
from .execute import execute_experiment
from .options import Changes, DataDir, Device, GpuShare, Jobs, Json, Out, RayAddress, Track, parse_jobs

EPILOG = "Example: cosdefense run experiments/mnist-ipm-300.toml --set training.rounds=200"


def run(
    file: Annotated[Path, typer.Argument(help="An experiment as TOML: attacks × defenses × seeds.")],
    changes: Changes = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    data_dir: DataDir = None,
    jobs: Jobs = "1",
    ray: RayAddress = None,
    gpu_share: GpuShare = 1.0,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Run every cell of an experiment. What is done is skipped, what was interrupted is resumed."""
    execution = Execution(device, data_dir, parse_jobs(jobs), ray, gpu_share)

    from ..runs.experiment_file import load

    experiment = load(file, changes or ())
    results.show_runs(execute_experiment(experiment, out, execution, track or ()), as_json)
    console.err.print(f"Draw it: cosdefense report {out / experiment.name}", soft_wrap=True)
