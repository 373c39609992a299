"""cosdefense arena: every defense against every attack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..catalog.options import ConfigError
from ..runs.execution import Execution
from . import console
from .options import Changes, DataDir, Device, Draw, GpuShare, Jobs, Json, Publish, RayAddress, parse_jobs
from .study import Study, run_study

EPILOG = (
    "Examples: cosdefense arena --defenses CosDefense,median --attacks none,ALIE · cosdefense arena --dataset mnist "
    "--attackers 0.1,0.3,0.4 --device cuda --jobs auto"
)
TITLE = "The arena: every defense against every attack"


def arena(
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="digits (default; needs no download), mnist, fashion-mnist, cifar-10, or an experiment file with your "
            "own data; repeatable."
        ),
    ] = None,
    attackers: Annotated[
        str, typer.Option(metavar="SHARE,…", help="The share of malicious clients; several in turn: 0.1,0.3,0.4.")
    ] = "0.3",
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 3,
    defenses: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Only these of experiments/arena, by label or name.")
    ] = None,
    attacks: Annotated[str | None, typer.Option(metavar="NAME,…", help="Likewise.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How long each run is; default: as the files say, 300.")] = None,
    changes: Changes = None,
    out: Annotated[Path, typer.Option(help="Where runs and report go.", file_okay=False)] = Path("runs/arena"),
    draw: Draw = False,
    publish: Publish = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    jobs: Jobs = "1",
    ray: RayAddress = None,
    gpu_share: GpuShare = 1.0,
    as_json: Json = False,
) -> None:
    """Run every defense against every attack, over several seeds, and rank the defenses by what they lose.

    Malicious clients attack from the first round on. Rules that need the number of malicious clients are given the true
    one, and are ranked apart from those that do not. Plain averaging without an attack is always run: all are compared
    with it. Finished runs are skipped and interrupted ones are resumed: give the same command again until all is done.
    """
    from ..studies.arena.plan import Choice, plan
    from ..studies.arena.report import write_arena_report

    choice = Choice(_names(defenses), _names(attacks), seeds, rounds, changes or ())
    planned = plan(dataset or ["digits"], _shares(attackers), choice)
    for message in planned.left_out:
        console.note(message)
    study = Study(planned.runs, TITLE, "this arena", write_arena_report)
    execution = Execution(device, data_dir, parse_jobs(jobs), ray, gpu_share)
    run_study(study, out, execution, draw=draw, publish=publish, as_json=as_json)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _shares(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--attackers must be shares like 0.1,0.3, got {text!r}") from error
