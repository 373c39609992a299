"""cosdefense demo: the paper's picture in about a minute."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from ..catalog.extras import MissingExtra
from ..runs.execution import Execution
from . import console, results
from .execute import execute_experiment
from .options import Device, Json, Out

EPILOG = "Example: cosdefense demo --seed 3"


def demo(
    out: Out = Path("runs"),
    seed: Annotated[int | None, typer.Option(help="Another seed than the default one.")] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """See a poisoned federation collapse without a defense and learn with one. No download; one thread."""
    import torch

    from ..report import write_report
    from ..runs.experiment_file import load

    with resources.as_file(resources.files("cosdefense.cli") / "demo.toml") as path:
        experiment = load(path, () if seed is None else (f"seeds=[{seed}]",))
    torch.set_num_threads(1)  # the model is tiny, and one thread gives the same bits on any number of cores
    runs = execute_experiment(experiment, out, Execution(device))
    try:
        written = write_report(runs, out / experiment.name, experiment.name)
    except MissingExtra as missing:  # the demo works without any extra
        results.show_runs(runs, as_json)
        console.note(f"nothing was drawn, because {missing}")
    else:
        results.show_runs(runs, as_json, written)
