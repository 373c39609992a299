"""cosdefense arena: every defense against every attack."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..catalog.options import ConfigError
from ..runs.execution import Execution
from . import console
from .options import Changes, DataDir, Device, Draw, GpuShare, Jobs, Json, Publish, RayAddress, parse_jobs
from .study import Study, run_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..runs.experiment import Experiment
    from ..studies.arena.plan import Choice
    from ..studies.arena.tuned import Tuned

EPILOG = (
    "Examples: cosdefense arena --defenses CosDefense,median --attacks none,ALIE · cosdefense arena --dataset mnist "
    "--seeds 0-4 --device cuda --jobs auto · cosdefense arena --dataset mnist --list"
)
TITLE = "The arena: every defense against every attack"
TUNING = "The arena: tuning"


def arena(
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="A field: digits (default; needs no download), mnist, fashion-mnist, cifar-10, full-participation, "
            "tabular, mnist-1000, mnist-1000-from-200, mnist-150-trials; or an experiment file with your own data; "
            "repeatable."
        ),
    ] = None,
    attackers: Annotated[
        str, typer.Option(metavar="SHARE,…", help="The share of malicious clients; several in turn: 0.1,0.3,0.4.")
    ] = "0.3",
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|A-B|A,B,…",
            help="How many seeds (3: 0, 1 and 2), a range (10-14) or a list (0,3,7). Seeds 0-4 are for design, 10-14 "
            "for a test of committed code. Default: 3, with --tune 5.",
        ),
    ] = None,
    defenses: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Only these of experiments/arena, by label or name.")
    ] = None,
    attacks: Annotated[str | None, typer.Option(metavar="NAME,…", help="Likewise.")] = None,
    best: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only the N defenses with the best worst case on --ranked-on, by the runs with design seeds in --out; "
            "and those that --defenses names.",
        ),
    ] = None,
    ranked_on: Annotated[str, typer.Option(metavar="FIELD", help="The field that --best compares them on.")] = "mnist",
    rounds: Annotated[int | None, typer.Option(help="How long each run is; default: as the files say, 300.")] = None,
    changes: Changes = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Choose the options of rules instead: try the settings of experiments/arena/tuning.toml on one field, "
            "by default mnist, and write tuned.toml.",
        ),
    ] = False,
    tuned: Annotated[
        Path | None,
        typer.Option(help="What --tune wrote; default: experiments/arena/tuned.toml, if it is there.", dir_okay=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where runs and report go; default: runs/arena, with --tune runs/tuning.", file_okay=False),
    ] = None,
    list_only: Annotated[
        bool,
        typer.Option(
            "--list", help="Print how many runs there are, how many are done, and about how long the others take."
        ),
    ] = False,
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
    from ..studies.arena.plan import Choice
    from ..studies.arena.seeds import parse_seeds
    from ..studies.arena.tuned import read_tuned

    execution = Execution(device, data_dir, parse_jobs(jobs), ray, gpu_share)
    shares, folder = _shares(attackers), out or Path("runs") / ("tuning" if tune else "arena")
    chosen = None if tune else read_tuned(tuned)
    choice = Choice(
        _names(defenses), _names(attacks), parse_seeds(seeds or ("5" if tune else "3")), rounds, changes or (), chosen
    )
    if tune:
        study = _plan_tuning(dataset or ["mnist"], shares, choice, best)
    else:
        study = _plan_arena(dataset or ["digits"], shares, choice, (best, ranked_on), folder)
    if list_only:
        _list(study.planned, folder, execution)
        return
    if not draw:
        from ..studies.arena.frozen import check_frozen

        check_frozen(study.planned, folder)
    run_study(study, folder, execution, draw=draw, publish=publish, as_json=as_json)


def _plan_arena(
    fields: Sequence[str], shares: Sequence[float], choice: Choice, best: tuple[int | None, str], folder: Path
) -> Study:
    from dataclasses import replace

    from ..studies.arena.plan import plan
    from ..studies.arena.report import write_arena_report

    n_best, ranked_on = best
    if n_best is not None:
        names = _find_best(n_best, ranked_on, shares, choice, folder)
        choice = replace(choice, defenses=list(dict.fromkeys([*names, *(choice.defenses or ())])))
    planned = plan(fields, shares, choice)
    for message in planned.left_out:
        console.note(message)
    return Study(planned.runs, TITLE, "this arena", write_arena_report, notes=_make_notes(choice.tuned))


def _find_best(n: int, field: str, shares: Sequence[float], choice: Choice, folder: Path) -> list[str]:
    """The best on that field as its file says and with design seeds, whatever else is chosen."""
    from dataclasses import replace

    from ..studies.arena.best import list_best
    from ..studies.arena.plan import plan
    from ..studies.arena.seeds import DESIGN, SEED_SETS
    from ..studies.study import read_planned_runs

    if len(shares) != 1:
        raise ConfigError(f"--best takes one share of attackers, got {', '.join(map(str, shares))}")
    every = replace(choice, defenses=None, attacks=None, seeds=tuple(SEED_SETS[DESIGN]), rounds=None, changes=())
    planned = plan([field], shares, every).runs
    names = list_best(n, planned, read_planned_runs(planned, folder))
    console.note(f"the best on {field}, with design seeds: {', '.join(names)}")
    return names


def _plan_tuning(fields: Sequence[str], shares: Sequence[float], choice: Choice, best: int | None) -> Study:
    from ..studies.arena.report import write_tuning_report
    from ..studies.arena.tuning import plan_tuning

    if len(fields) != 1 or len(shares) != 1 or best is not None:
        raise ConfigError("--tune takes one --dataset and one share of --attackers, and no --best")
    planned = plan_tuning(fields[0], shares[0], choice)
    for message in planned.plan.left_out:
        console.note(message)
    write = partial(write_tuning_report, plan=planned)
    return Study(planned.plan.runs, TUNING, "this tuning", write, notes=_make_notes(None))


def _make_notes(tuned: Tuned | None) -> dict[str, Any]:
    """For the header of every run: which seeds are for what, and what options were chosen from."""
    from ..studies.arena.seeds import SEED_SETS

    sets = {f"{name}_seeds": list(seeds) for name, seeds in SEED_SETS.items()}
    return sets if tuned is None else {**sets, "tuned": dict(tuned.source)}


def _list(planned: Sequence[Experiment], folder: Path, execution: Execution) -> None:
    from ..studies.arena.forecast import forecast, make_forecast_table

    console.print_text(make_forecast_table(forecast(planned, folder, execution)).markdown())


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _shares(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--attackers must be shares like 0.1,0.3, got {text!r}") from error
