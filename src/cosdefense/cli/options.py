"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..catalog.options import ConfigError

Out = Annotated[Path, typer.Option(help="The folder that holds runs.", file_okay=False)]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder with the datasets; searched before COSDEFENSE_DATA, the cache and Debian's."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Jobs = Annotated[
    str, typer.Option(metavar="N|auto", help="Processes on this machine that share the runs; auto: as many as fit.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS|local",
        help="Run on this Ray cluster, one run per task and core; local: start one for this command. "
        'Results come to --out here, nodes need cosdefense and no data. Needs the extra "ray".',
    ),
]
GpuShare = Annotated[
    float, typer.Option(help="With --ray: of a GPU, what each run asks for; 0.25 puts four runs on one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines on standard output.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file; repeatable.")
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=WHERE]",
        help="Also send every round to tensorboard[=FOLDER], mlflow[=URI], wandb[=PROJECT] or package.module:Class; "
        "repeatable. Each needs the extra of its name.",
    ),
]
Draw = Annotated[bool, typer.Option("--draw", help="Run nothing: report on the runs that exist, finished or not.")]
Publish = Annotated[
    Path | None,
    typer.Option(
        help="Write the report of the finished runs, and their records in one compressed file, to this folder instead."
    ),
]


def parse_jobs(text: str) -> int | None:
    """How many processes --jobs asks for; None: as many as fit."""
    try:
        return None if text == "auto" else int(text)
    except ValueError as error:
        raise ConfigError(f"--jobs must be a number or auto, got {text!r}") from error
