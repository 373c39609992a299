"""The simulator on a GPU: the paper's runs, and a round beside a plain loop, one batched computation and the limit.

python benchmarks/gpu.py [mnist] [cifar-10] [phases] [grid] [--rounds N] [--json FILE] [--markdown]    default: all

It needs the datasets. The grid needs NVIDIA's MPS (`nvidia-cuda-mps-control`): without it the processes take turns on
the GPU. One process alone is measured beside it, and where the milliseconds of its rounds go: `phases` is that alone.
"""

from __future__ import annotations

import copy
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from measuring import Table, Timing, machine, options, report, timed
from torch import nn
from torch.nn.functional import cross_entropy

from cosdefense.core import generator
from cosdefense.data import Dataset
from cosdefense.data import load as load_data
from cosdefense.runs.device import choose_device, reproducible
from cosdefense.runs.execution import Execution
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import load
from cosdefense.runs.many_runs import run_all
from cosdefense.runs.observer import Job, Observer
from cosdefense.runs.prepare import build_model, build_world
from cosdefense.runs.records import RoundRecord
from cosdefense.runs.single_run import simulate_cell
from cosdefense.simulation.world import World
from cosdefense.studies.paper.plan import files
from cosdefense.studies.study import experiments_folder
from cosdefense.training.executor import train_batched, train_clients

GOALS = {"mnist": 6.0, "cifar-10": 45.0}  # seconds for the paper's 1000 rounds
PRECISIONS = {"TF32": ("training.tf32=true",), "bfloat16": ("training.bfloat16=true",)}
PHASES, GRID = "phases", "grid"
GRID_ROUNDS = 200  # of every run: less than two minutes in all. The arena's have 300
ALONE = 5  # runs of one process
GRID_GOAL = 500  # rounds a second
GRID_ATTACKS = ("none", "inner product ε = 5", "ALIE", "label flip")
RUN = ("attacks=[{label='inner product', name='inner-product'}]", "defenses=[{name='cosdefense'}]", "seeds=[0]")


def paper_run(name: str, *changes: str) -> Experiment:
    """Table 3's run of CosDefense, tested as anybody would."""
    return load(files() / f"{name}.toml", [*RUN, "training.batch_statistics=false", *changes])


def whole_run(cell: Experiment, dataset: Dataset, device: torch.device) -> tuple[float, Counter[str], float]:
    """Seconds from the first round to the last, those of each phase, and the accuracy over the last 100 rounds."""
    torch.backends.cudnn.allow_tf32 = cell.training.tf32
    world, phases, late = build_world(cell, dataset, device), Counter[str](), []
    start = time.perf_counter()
    for record, _ in simulate_cell(cell, world, dataset, None):
        phases.update(record.seconds)
        if record.accuracy is not None and record.round >= cell.training.rounds - 100:
            late.append(record.accuracy)
    return time.perf_counter() - start, phases, fmean(late)


def plain_round(
    world: World, model: nn.Module, params: torch.Tensor, images: torch.Tensor, labels: torch.Tensor
) -> None:
    """Every client loads the global model, takes a step, and hands over what changed: as it is usually written."""
    tensors = world.task.layout.unflatten(params)
    start = {name: tensors.get(name, tensor).clone() for name, tensor in model.state_dict().items()}
    mean, std = (values.float().view(-1, 1, 1) for values in world.task._channels)
    updates = []
    for batch, targets in zip(images, labels, strict=True):
        model.load_state_dict(copy.deepcopy(start))
        optimizer = torch.optim.SGD(model.parameters(), lr=world.trainer.lr)
        cross_entropy(model((batch[0] - mean) / std), targets[0]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        updates.append(world.task.layout.flatten(model.state_dict()) - params)
    torch.stack(updates)


def flops(world: World, model: nn.Module, images: torch.Tensor) -> float:
    """Multiplications and additions of a round's training, counted while one client trains."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(images[0, 0]).sum().backward()
    return float(counter.get_total_flops() * len(images))


def matmul_rate(device: torch.device) -> float:
    """Operations per second of a large product in TF32."""
    matrices = [torch.randn(8192, 8192, device=device) for _ in range(2)]
    torch.backends.cuda.matmul.allow_tf32 = True
    found = timed({"product": synchronized(lambda: matrices[0] @ matrices[1])}, repeats=10, warm_up=3)
    torch.backends.cuda.matmul.allow_tf32 = False
    return 2 * 8192**3 / found["product"].median


def without_tf32(case: Callable[[], Any]) -> None:
    torch.backends.cudnn.allow_tf32 = False
    case()
    torch.backends.cudnn.allow_tf32 = True


def synchronized(case: Callable[[], Any]) -> Callable[[], None]:
    def done() -> None:
        case()
        torch.cuda.synchronize()

    return done


def rounds_side_by_side(name: str, dataset: Dataset, device: torch.device) -> tuple[Table, dict[str, Timing]]:
    """Ten clients train one step each: seconds of one round."""
    cell = paper_run(name)
    torch.backends.cudnn.allow_tf32 = True
    world = build_world(cell, dataset, device)
    images, labels = world.draw_batches(torch.arange(10), 1, cell.training.batch, generator(0))
    params, model = world.task.initial().to(device), build_model(cell, dataset).to(device).train()
    ours = partial(train_clients, world.task, world.trainer, params, images, labels)
    cases: dict[str, Callable[[], Any]] = {
        "ours": ours,
        "ours in float32": partial(without_tf32, ours),
        "one batched computation (vmap)": partial(train_batched, world.task, world.trainer, params, images, labels),
        "plain loop": partial(plain_round, world, model, params, images, labels),
    }
    found = timed({case: synchronized(run) for case, run in cases.items()}, repeats=15, warm_up=3)
    found["limit"] = Timing((flops(world, model, images) / matmul_rate(device),))
    took = found["ours"].median
    rows = [(case, f"{1e3 * timing.median:.2f}", f"{timing.median / took:.2f}×") for case, timing in found.items()]
    title = f"{name}: one round of training in TF32, ten clients; limit: its operations at the rate of a large product"
    return Table(title, ("", "ms", "beside ours"), rows), found


def whole_runs(name: str, dataset: Dataset, device: torch.device) -> tuple[Table, dict[str, Any]]:
    """The paper's run in two precisions: seconds, and what they do to accuracy."""
    rows, results = [], {}
    for label, changes in PRECISIONS.items():
        cell = paper_run(name, *changes)
        seconds, phases, accuracy = whole_run(cell, dataset, device)
        results[label] = {"seconds": seconds, "phases": dict(phases), "accuracy": accuracy}
        spent = (f"{phases[phase]:.1f}" for phase in ("train", "attack", "defend", "evaluate"))
        goal = phases["train"] + phases["evaluate"]
        rows.append((label, f"{seconds:.1f}", f"{goal:.1f}", *spent, f"{accuracy:.1%}"))
    title = (
        f"{name}: 1000 rounds of CosDefense under attack, 50 tests; goal: training and testing in {GOALS[name]:.0f} s"
    )
    return Table(
        title,
        (
            "",
            "seconds",
            "training and testing",
            "training",
            "attack",
            "defense",
            "testing",
            "accuracy, last 100 rounds",
        ),
        rows,
    ), results


class RoundTimes(Observer):
    """Notes when each round of any run was recorded, and where the time between two rounds of a run went."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.times: list[float] = []
        self.phases = Counter[str]()  # seconds of rounds that follow another one of the same run,
        self.n_phases = 0  # and their number
        self._last: dict[Path, float] = {}

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        now = time.perf_counter()
        self.times.append(now)
        if job.folder in self._last:
            known = dict(record.seconds)
            rest = now - self._last[job.folder] - sum(known.values())
            self.phases.update({**known, "record and rest": rest})
            self.n_phases += 1
        self._last[job.folder] = now

    def rate(self) -> float:
        """Rounds per second from the first tenth of all rounds to the last: without start and end."""
        first, last = len(self.times) // 10, len(self.times) * 9 // 10
        return (last - first) / (self.times[last] - self.times[first])


def read_grid(name: str, rounds: int) -> list[Experiment]:
    """One run of every defense of the arena under each of some attacks."""
    grid = load(experiments_folder("arena") / f"{name}.toml", ["seeds=[0]", f"training.rounds={rounds}"])
    return [cell for cell in grid.cells() if cell.attacks[0].label in GRID_ATTACKS]


def make_all(cells: Sequence[Experiment], processes: int | None) -> tuple[RoundTimes, float]:
    """What was observed, and all seconds."""
    observer = RoundTimes()
    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(cell, cell.folder(Path(folder)), "") for cell in cells]
        run_all(jobs, Execution("cuda", processes=processes), observer)
    return observer, time.perf_counter() - observer.start


def many_runs(name: str, rounds: int, *, alone: bool = False) -> tuple[list[Table], dict[str, Any]]:
    """Rounds per second of a grid of all defenses of the arena, by one process and by as many as fit."""
    cells = read_grid(name, rounds)
    by_attack = [[cell for cell in cells if cell.attacks[0].label == label] for label in GRID_ATTACKS]
    few = [(own := by_attack[i % len(by_attack)])[i * len(own) // ALONE] for i in range(ALONE)]
    cases = [("1", 1, few), *([] if alone else [("--jobs auto", None, cells)])]
    rows, spent, results = [], [], dict[str, Any]()
    for label, processes, chosen in cases:
        observer, seconds = make_all(chosen, processes)
        n, first, rate = len(observer.times), observer.times[0] - observer.start, observer.rate()
        milliseconds = {phase: 1e3 * took / observer.n_phases for phase, took in observer.phases.items()}
        results[label] = {"seconds": seconds, "first": first, "rounds": n, "rate": rate, "phases": milliseconds}
        rows.append(
            (label, str(len(chosen)), str(n), f"{seconds:.0f}", f"{first:.1f}", f"{n / seconds:.0f}", f"{rate:.0f}")
        )
        spent += [(label, phase, f"{took:.2f}") for phase, took in milliseconds.items()]
        print(f"processes {label}: {n} rounds in {seconds:.0f} s, the first after {first:.1f}", flush=True)
    title = f"{name}: runs of the arena's defenses under {len(GRID_ATTACKS)} attacks; goal: {GRID_GOAL} rounds a second"
    heading = ("processes", "runs", "rounds", "seconds", "until the first round", "rounds a second")
    where = Table(f"{name}: where a round's milliseconds go", ("processes", "phase", "ms"), spent)
    return [Table(title, (*heading, "without start and end"), rows), where], results


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("what", nargs="*", default=[*GOALS, GRID], choices=[*GOALS, PHASES, GRID])
    parser.add_argument(
        "--rounds", type=int, default=GRID_ROUNDS, help=f"of every run of the grid, at least 10; default: {GRID_ROUNDS}"
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit must not leave processes behind
    if not torch.cuda.is_available():
        sys.exit("error: this needs a CUDA GPU, and torch finds none here")
    device, tables, results = choose_device("cuda"), list[Table](), dict[str, Any]()
    for name in (name for name in GOALS if name in given.what):
        dataset = load_data(name)
        measures = {"round": rounds_side_by_side, "run": whole_runs}
        for what, measure in measures.items():
            table, results[f"{name} {what}"] = measure(name, dataset, device)
            tables.append(table)
            print(table.text(), flush=True)
    if given.rounds < 10:
        parser.error(f"--rounds must be at least 10, got {given.rounds}")
    if GRID in given.what or PHASES in given.what:
        found, results["mnist grid"] = many_runs("mnist", given.rounds, alone=GRID not in given.what)
        tables += found
    report(given, machine("cosdefense"), tables, results)


if __name__ == "__main__":
    with reproducible():
        main()
