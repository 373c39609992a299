"""The commands. What is heavy is imported by the command that needs it, so that `--help` answers at once."""

from __future__ import annotations

import signal
import warnings
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import __version__
from ..catalog.options import ConfigError
from ..runs.execution import Execution, MissingRayExtra
from . import arena as arena_command
from . import console
from . import train_attack as train_command
from .data import data_app
from .kinds import Kind
from .options import Changes, DataDir, Device, Draw, GpuShare, Jobs, Json, Out, Publish, RayAddress, Worker
from .study import Study, finish, finish_drift, processes, run_study

if TYPE_CHECKING:
    from ..runs.experiment import Experiment
    from ..runs.records import RunRecord

EPILOG = (
    "Exit codes: 0 done · 1 something failed (data, disk) · 2 a mistake in what was asked · 130 interrupted, resumable."
)
PAPER = "The CosDefense paper, reproduced"

app = typer.Typer(
    help="Keeps poisoned model updates out of federated learning.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if show:
        console.out.print(__version__)
        raise typer.Exit


@app.command(epilog="Example: cosdefense demo --seed 3")
def demo(
    out: Out = Path("runs"),
    seed: Annotated[int | None, typer.Option(help="Another seed than the default one.")] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """See a poisoned federation collapse without a defense and learn with CosDefense. Needs no download."""
    import torch

    from ..report import write_report
    from ..runs.experiment import load

    with resources.as_file(resources.files("cosdefense.cli") / "demo.toml") as path:
        experiment = load(path, () if seed is None else (f"seeds=[{seed}]",))
    torch.set_num_threads(1)  # the model is tiny; and one thread gives the same bits on any number of cores
    runs = _run_all(experiment, out, Execution(device))
    console.show_runs(runs, as_json, write_report(runs, out / experiment.name, experiment.name))


@app.command("run", epilog="Example: cosdefense run experiments/mnist-ipm-300.toml --set training.rounds=200")
def run_file(
    file: Annotated[Path, typer.Argument(help="An experiment as TOML: attacks × defenses × seeds.")],
    changes: Changes = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    data_dir: DataDir = None,
    jobs: Jobs = "1",
    ray: RayAddress = None,
    gpu_share: GpuShare = 1.0,
    as_json: Json = False,
    worker: Worker = False,
) -> None:
    """Run every cell of an experiment. What is done is skipped, what was interrupted goes on."""
    place = Execution(device, data_dir, processes(jobs), worker, ray, gpu_share, file.parent)

    from ..runs.experiment import load

    experiment = load(file, changes or ())
    runs = _run_all(experiment, out, place)
    if not worker:
        console.show_runs(runs, as_json)
        console.err.print(f"Draw it: cosdefense report {out / experiment.name}", soft_wrap=True)


@app.command(
    epilog="Examples: cosdefense reproduce table3 --dataset mnist --seeds 1 · cosdefense reproduce all --device cuda "
    "--jobs 8 · cosdefense reproduce all --quick"
)
def reproduce(
    what: Annotated[
        list[str] | None, typer.Argument(help="table3, figure1, figure2, figure3, figure4, figure6 or all (default).")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only runs on mnist, fashion-mnist or cifar-10; repeatable.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds; default: as the files under experiments/paper say, 5 and 2.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The picture without a GPU: a small network, fewer rounds, one seed.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where runs and report go; default: runs/paper or runs/paper-quick.")
    ] = None,
    draw: Draw = False,
    publish: Publish = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    jobs: Jobs = "1",
    ray: RayAddress = None,
    gpu_share: GpuShare = 1.0,
    as_json: Json = False,
    worker: Worker = False,
) -> None:
    """Reproduce the tables and figures of the CosDefense paper, over several seeds.

    Finished runs are not repeated and interrupted ones go on, so the same command can be given until all is done.
    Without the extra "report", on a bare GPU machine, the runs are made all the same; the same command draws them where
    it is installed.
    """
    from ..studies.paper.drift import PACK, read_drift, write_drift
    from ..studies.paper.plan import ALL, files, plan, published
    from ..studies.paper.report import write_paper_report

    planned = plan(what or [ALL], datasets=dataset or (), n_seeds=seeds, quick=quick)
    folder = out or Path("runs") / ("paper-quick" if quick else "paper")
    place = Execution(device, data_dir, processes(jobs), worker, ray, gpu_share, files())
    if not draw and not worker:
        finish_drift(planned.drift, folder, place)
    drift = read_drift(planned.drift, folder)
    if publish and drift:
        write_drift(publish / PACK, drift)
    write = partial(write_paper_report, drift=drift)
    study = Study(planned.runs, PAPER, ", ".join(what or [ALL]), write, bool(drift), published)
    run_study(study, folder, place, draw=draw, publish=publish, as_json=as_json)


app.command(epilog=arena_command.EPILOG)(arena_command.arena)


@app.command(epilog="Example: cosdefense report runs/demo")
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, folders that hold some, or packs (records.jsonl.gz).")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: the first folder named.")] = None,
    as_json: Json = False,
) -> None:
    """Write PNG figures and one HTML page that works offline."""
    from ..report import write_report
    from ..runs.packed_records import read_runs

    read = [run for path in runs for run in read_runs(path)]
    read.sort(key=lambda run: (run.header.get("attack") != "none", run.label != "none"))  # what others are measured by
    folder = out or (runs[0].parent if runs[0].is_file() else runs[0])
    console.show_report(
        write_report(read, folder, str(read[0].header["experiment"].get("name", runs[0].name))), as_json
    )


app.command(epilog=train_command.EPILOG)(train_command.train_attack)


@app.command("list", epilog="Example: cosdefense list attacks")
def list_parts(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; default: everything.")] = None,
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/catalog.md: all parts, in full.")] = False,
) -> None:
    """What there is, what it needs, with options and defaults."""
    from ..catalog import page as catalog_page
    from . import listing

    if markdown:
        console.print_text(catalog_page.build_page())
        return
    kinds = [kind] if kind else list(Kind)
    if as_json:
        console.print_json({str(kind): listing.entries(kind) for kind in kinds})
        return
    for kind in kinds:
        console.out.print(listing.table(kind))


def main() -> None:
    """The entry point: a user's mistake is one line, never a traceback."""
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's time limit loses no more than Ctrl-C
    try:
        app()
    except ConfigError as error:
        console.fail(str(error), 2)
    except (MissingRayExtra, OSError) as error:
        console.fail(str(error), 1)
    except Exception as error:
        if not isinstance(error, _expected()):
            raise
        console.fail(str(error), 1)


def _expected() -> tuple[type[Exception], ...]:
    """What may go wrong without anybody having made a mistake."""
    from ..data import DataError
    from ..reinforcement import MissingRLExtra
    from ..report import MissingReportExtra
    from ..runs.checkpoint import DamagedCheckpoint
    from ..runs.ray.driver import RayTrouble, RunsFailed
    from ..runs.records import NotARun
    from ..runs.run_folder import RunInUse

    return DataError, NotARun, DamagedCheckpoint, RunInUse, RunsFailed, RayTrouble, MissingReportExtra, MissingRLExtra


def _run_all(experiment: Experiment, out: Path, place: Execution) -> list[RunRecord]:
    from ..runs.many_runs import Job
    from ..runs.records import read_run

    jobs = [Job(cell, cell.folder(out), _cell_label(cell, experiment)) for cell in experiment.cells()]
    finish(jobs, place, out / experiment.name)
    return [] if place.worker else [read_run(job.folder) for job in jobs]


def _cell_label(cell: Experiment, experiment: Experiment) -> str:
    """The defense, and whatever else varies."""
    (attack,), (defense,), (seed,) = cell.attacks, cell.defenses, cell.seeds
    attacks = [attack.label] if len(experiment.attacks) > 1 else []
    seeds = [f"seed {seed}"] if len(experiment.seeds) > 1 else []
    return " · ".join((defense.label, *attacks, *seeds))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    console.note(str(message))
