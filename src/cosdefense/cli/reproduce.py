"""cosdefense reproduce: the tables and figures of the CosDefense paper."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..runs.execution import Execution
from .execute import resume_hint
from .options import DataDir, Device, Draw, GpuShare, Jobs, Json, Publish, RayAddress, parse_jobs
from .progress import DownloadProgress, progress_bars
from .study import Study, run_study

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ..runs.experiment import Experiment

EPILOG = (
    "Examples: cosdefense reproduce table3 --dataset mnist --seeds 1 · cosdefense reproduce all --device cuda "
    "--jobs 8 · cosdefense reproduce all --quick"
)
TITLE = "The CosDefense paper, reproduced"


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="table3, figure1, figure2, figure3, figure4, figure6 or all (default); or what the paper claims "
            "without a figure: layers, aggregators, backdoors or claims."
        ),
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
) -> None:
    """Reproduce the tables and figures of the CosDefense paper, over several seeds.

    Finished runs are skipped and interrupted ones are resumed, so give the same command again until all is done.
    Without the extra "report", as on a bare GPU machine, the runs are made but not drawn; the same command draws them
    where it is installed.
    """
    from ..studies.paper.drift import PACK, read_drift, write_drift
    from ..studies.paper.plan import ALL, compact_run, plan
    from ..studies.paper.report import write_paper_report

    planned = plan(what or [ALL], datasets=dataset or (), n_seeds=seeds, quick=quick)
    folder = out or Path("runs") / ("paper-quick" if quick else "paper")
    execution = Execution(device, data_dir, parse_jobs(jobs), ray, gpu_share)
    if not draw:
        _finish_drift(planned.drift, folder, execution)
    drift = read_drift(planned.drift, folder)
    if publish and drift:
        write_drift(publish / PACK, drift)
    write = partial(write_paper_report, drift=drift)
    study = Study(planned.runs, TITLE, ", ".join(what or [ALL]), write, bool(drift), compact_run)
    run_study(study, folder, execution, draw=draw, publish=publish, as_json=as_json)


def _finish_drift(planned: Sequence[Experiment], folder: Path, execution: Execution) -> None:
    """Make the runs of the paper's figure 1, on this machine and one after the other."""
    from ..runs import provenance
    from ..runs.data_section import load_dataset
    from ..runs.device import choose_device
    from ..studies.paper.drift import run_drift

    device, notes = choose_device(execution.device), provenance.notes()
    with resume_hint(), progress_bars() as bars:
        for run in planned:
            bar = bars.add_task(f"figure 1 · seed {run.seeds[0]}", total=run.training.rounds, note="")
            dataset = load_dataset(run, execution.data_dir, progress=DownloadProgress(bars))
            update = partial(_update, bars, bar)
            result = run_drift(run, run.folder(folder), dataset, device, notes=notes, on_measurement=update)
            update(len(result.measurements))


def _update(bars: Progress, bar: TaskID, completed: int) -> None:
    bars.update(bar, completed=completed)
