"""A round of training beside a plain loop, byzfl's framework and Flower with Ray; evaluation; many clients.

python benchmarks/simulator.py [--markdown] [--json FILE] [--most 1000]

The paper's network and round (10 clients, one step on 128 images of 28×28, then Krum), random pixels. All peers are
given the same images and the same start. What is missing is named and left out.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from measuring import Table, Timing, machine, options, report, timed
from peers import byzfl_module
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, unfold
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from cosdefense import Attack, Cohort, Defense, get
from cosdefense.runs.memory import KEPT, KEPT_PIECE, keep_freed_memory
from cosdefense.simulation.evaluation import evaluate
from cosdefense.simulation.loop import simulate
from cosdefense.simulation.world import World
from cosdefense.training.fast_convolution import convolve
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import paper_cnn
from cosdefense.training.task import Task

N, BATCH, MALICIOUS, LR = 10, 128, 3, 0.01
FLOWER_SECONDS = 120  # to start and to play its rounds
GOALS = {"plain loop": 1.6, "Flower + Ray": 2.4}  # times as fast
Round = Callable[[], Any]


def network() -> nn.Module:
    torch.manual_seed(0)
    return paper_cnn((1, 28, 28), 10)


def world(n_clients: int = N) -> World:
    rng = torch.Generator().manual_seed(0)
    return World(
        task=Task.of(network(), fast_convolutions=True),
        inputs=torch.randint(0, 256, (60_000, 1, 28, 28), generator=rng, dtype=torch.uint8),
        targets=torch.randint(0, 10, (60_000,), generator=rng),
        partition=[torch.randint(0, 60_000, (BATCH,), generator=rng) for _ in range(n_clients)],
        malicious=torch.zeros(n_clients, dtype=torch.bool),
        n_classes=10,
        trainer=LocalSGD(LR),
    )


def ours(world: World, defense: Defense, sampled: int = N, steps: int = 1, memory: int | None = None) -> Round:
    """One round each time it is called; the model is not moved, so that every round is the same work."""

    def one() -> Any:
        settings = {"sampled": sampled, "batch": BATCH, "local_steps": steps, "max_update_memory": memory}
        return next(simulate(world, Attack(), defense, rounds=1, seed=0, **settings))  # type: ignore[arg-type]

    return one


def plain(world: World, steps: int = 1) -> Round:
    """As research code is written: a module into which states are loaded, torch.optim.SGD; then the same Krum."""
    model, judge = network().train(), get("krum")
    start, layout = copy.deepcopy(model.state_dict()), world.task.layout
    params = layout.flatten(start)

    def one() -> Any:
        updates = []
        for own in world.partition:
            images, labels = world.inputs[own].float() / 255, world.targets[own]
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), LR)
            for _ in range(steps):
                optimizer.zero_grad()
                cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            updates.append(layout.flatten(model.state_dict()) - params)
        return judge(Cohort.of(torch.stack(updates), params, layout), judge.init())

    return one


def byzfl_round(world: World) -> Round | None:
    """byzfl's own clients and server."""
    framework = byzfl_module("fed_framework")
    if framework is None:
        return None
    framework.models.PaperCNN = network  # models are looked up by name
    common = {"model_name": "PaperCNN", "device": "cpu", "learning_rate": LR, "weight_decay": 0.0,
              "milestones": [], "learning_rate_decay": 1.0, "optimizer_name": "SGD"}  # fmt: skip
    loaders = [
        DataLoader(TensorDataset(world.inputs[own].float() / 255, world.targets[own]), batch_size=BATCH)
        for own in world.partition
    ]
    clients = [
        framework.Client({**common, "loss_name": "CrossEntropyLoss", "LabelFlipping": False, "nb_labels": 10,
                          "momentum": 0.0, "training_dataloader": loader, "store_per_client_metrics": False})
        for loader in loaders
    ]  # fmt: skip
    server = framework.Server({**common, "test_loader": loaders[0], "pre_agg_list": [],
                               "aggregator_info": {"name": "Krum", "parameters": {"f": MALICIOUS}}})  # fmt: skip

    def one() -> None:
        state = server.get_dict_parameters()
        for client in clients:
            client.set_model_state(state)
            client.compute_gradients()
        server.update_model_with_gradients([client.get_flat_gradients_with_momentum() for client in clients])

    return one


def flower_rounds(world: World, rounds: int) -> Timing | None:
    """Flower's simulation engine on Ray, its own Krum; from sending one round to sending the next."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_AUTH_MODE" not in os.environ:  # or Ray would write a key into the user's home; it looks when imported
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import Grid, ServerApp
        from flwr.serverapp.strategy import Krum as FlowerKrum
        from flwr.simulation import run_simulation
    except ImportError:
        return None
    for name in ("flwr", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    batches = [(world.inputs[own], world.targets[own]) for own in world.partition]
    client_app, server_app, moments = ClientApp(), ServerApp(), []

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        model = network().train()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        images, labels = batches[int(context.node_config["partition-id"])]
        optimizer = torch.optim.SGD(model.parameters(), LR)
        cross_entropy(model(images.float() / 255), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": BATCH})}
        return Message(content=RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    class Watched(FlowerKrum):
        def configure_train(self, *arguments: Any) -> Any:
            moments.append(time.perf_counter())
            return super().configure_train(*arguments)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Watched(
            fraction_evaluate=0.0, min_train_nodes=N, min_available_nodes=N, num_malicious_nodes=MALICIOUS
        )
        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds + 2)

    cpus = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"log_to_driver": False, "include_dashboard": False},
    }
    run_simulation(server_app, client_app, num_supernodes=N, backend_config=cpus)  # type: ignore[arg-type]
    ray.shutdown()
    return Timing(tuple(after - before for before, after in pairwise(moments[1:])))  # the first one starts actors


def flower_apart(repeats: int) -> Timing | None:
    """The same in a process of its own: where Ray does not start in its time, Flower waits for it forever."""
    command = [sys.executable, __file__, "--only-flower", "--repeats", str(repeats)]
    kept = {"MALLOC_TRIM_THRESHOLD_": str(KEPT), "MALLOC_MMAP_THRESHOLD_": str(KEPT_PIECE)}  # as the others have it
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FLOWER_SECONDS, check=True, env={**os.environ, **kept}
        )
        seconds = json.loads(done.stdout.splitlines()[-1])
        return Timing(tuple(seconds)) if seconds else None
    except (subprocess.SubprocessError, ValueError, IndexError) as problem:
        print(f"Flower + Ray failed: {type(problem).__name__}")
        return None


def limit(world: World) -> tuple[float, float, float]:
    """Seconds that a round's multiplications take at the rate of a large matrix product; their number; the rate."""
    model = network()
    images, labels = world.inputs[:BATCH].float() / 255, world.targets[:BATCH]
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    square = torch.rand(2048, 2048)
    rate = 2 * 2048**3 / min(timed({"matmul": lambda: square @ square}, repeats=15)["matmul"].seconds)
    return N * counter.get_total_flops() / rate, float(N * counter.get_total_flops()), rate


def plain_evaluation(world: World, n: int, chunk: int = 1000) -> Round:
    model = network().eval()

    @torch.no_grad()
    def one() -> float:
        right = 0
        for start in range(0, n, chunk):
            images = world.inputs[start : min(n, start + chunk)].float() / 255
            right += int((model(images).argmax(dim=1) == world.targets[start : start + len(images)]).sum())
        return right / n

    return one


@contextmanager
def anonymous_memory() -> Iterator[list[int]]:
    """The most memory that the process has to have, in bytes: what is mapped from files can be dropped at any time."""
    peak, done = [0], threading.Event()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed but kept would be used again without a trace

    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

    def watch(before: int) -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], now() - before)

    watcher = threading.Thread(target=watch, args=(now(),))
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def gradient_error(world: World) -> tuple[float, float]:
    """How far our gradient and that of torch's convolutions are from float64's, relative to its length."""
    model, images, labels = network(), world.inputs[:BATCH].float() / 255, world.targets[:BATCH]

    def slopes(model: nn.Module, images: Tensor) -> Tensor:
        found = torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()))
        return torch.cat([slope.flatten() for slope in found])

    torchs, fast = slopes(model, images), world.task.gradient(world.task.initial(), images, labels)[0]
    exact = slopes(model.double(), images.double())
    return tuple(float((found - exact).norm() / exact.norm()) for found in (fast, torchs))  # type: ignore[return-value]


def round_table(small: World, repeats: int) -> tuple[Table, dict[str, Any]]:
    cases: dict[str, Round] = {"cosdefense": ours(small, get("krum")), "plain loop": plain(small)}
    other = byzfl_round(small)
    if other is not None:
        cases["byzfl"] = other
    found = timed(cases, repeats)
    flower = flower_apart(repeats)
    if flower is not None:
        found["Flower + Ray"] = flower
    seconds, flops, rate = limit(small)
    mine = found["cosdefense"].median
    rows = []
    for name in ("cosdefense", "plain loop", "byzfl", "Flower + Ray"):
        if name not in found:
            rows.append((name, "not installed, or failed", "", ""))
            continue
        times = found[name].median / mine
        goal = GOALS.get(name)
        rows.append((name, str(found[name]), f"{times:.2f}×", "" if goal is None else f"{goal}× {_met(times >= goal)}"))
    text = f"{flops / 1e9:.1f} GFLOP at {rate / 1e9:.0f} GFLOP/s"
    rows.append((f"limit: {text}", f"{seconds:.3g} s", f"{seconds / mine:.2f}×", f"0.5× {_met(seconds / mine >= 0.5)}"))
    title = f"A Krum round, {N} clients × {BATCH} images, all training"
    return Table(title, ("", "seconds a round", "beside ours", "goal"), rows), found | {"limit": seconds}


def other_table(small: World, repeats: int) -> tuple[Table, dict[str, Any]]:
    task, n = small.task, 10_000
    start = task.initial()
    pairs: dict[str, tuple[Round, Round, float | None]] = {
        f"evaluation, {n} images": (
            lambda: evaluate(task, start, small.inputs[:n], small.targets[:n], Attack(), 10),
            plain_evaluation(small, n),
            1.5,
        ),
        "round of 5 local steps": (ours(small, get("krum"), steps=5), plain(small, steps=5), None),
    }
    rows, results = [], {}
    for name, (mine, theirs, goal) in pairs.items():
        found = timed({"cosdefense": mine, "plain loop": theirs}, max(3, repeats // 2))
        times = found["plain loop"].median / found["cosdefense"].median
        said = "" if goal is None else f"{goal}× {_met(times >= goal)}"
        rows.append((name, str(found["cosdefense"]), str(found["plain loop"]), f"{times:.2f}×", said))
        results[name] = found
    return Table("Other work", ("", "cosdefense", "plain loop", "times as fast", "goal"), rows), results


def layer_table(repeats: int) -> tuple[Table, dict[str, Any]]:
    """Forwards and back through single layers: torch's convolution, ours, and one matrix product of unfolded pixels."""
    shapes = {
        "1 → 64, 8×8, stride 2": (1, 64, 8, 2, 3, 28),
        "64 → 128, 6×6, stride 2": (64, 128, 6, 2, 0, 14),
        "128 → 128, 5×5": (128, 128, 5, 1, 0, 5),
        "512 → 512, 3×3 (ResNet-18's last)": (512, 512, 3, 1, 1, 4),
    }
    rows, results = [], {}
    for name, (channels, filters, kernel, stride, padding, pixels) in shapes.items():
        rng = torch.Generator().manual_seed(0)
        images = torch.rand(BATCH, channels, pixels, pixels, generator=rng).contiguous(
            memory_format=torch.channels_last
        )
        weight = torch.rand(filters, channels, kernel, kernel, generator=rng).requires_grad_()
        inputs = (weight,) if channels == 1 else (images.requires_grad_(), weight)  # pixels of a photo have no slope
        size = (pixels + 2 * padding - kernel) // stride + 1
        slope = torch.rand(BATCH, filters, size, size, generator=rng)

        cases = {
            "torch": partial(conv2d, images, weight, None, stride, padding),
            "cosdefense": partial(convolve, images, weight, None, (stride, stride), (padding, padding)),
            "unfolded": partial(_unfolded, images, weight, stride, padding, slope),
        }
        found = timed({key: partial(_there_and_back, case, inputs, slope) for key, case in cases.items()}, repeats)
        times = found["torch"].median / found["cosdefense"].median
        rows.append((name, *(str(found[key]) for key in cases), f"{times:.2f}×"))
        results[name] = found
    header = ("layer, 128 images", "torch", "cosdefense", "unfolded", "times as fast")
    return Table("Single layers, forwards and back", header, rows), results


def _unfolded(images: Tensor, weight: Tensor, stride: int, padding: int, like: Tensor) -> Tensor:
    columns = unfold(images, weight.shape[2], padding=padding, stride=stride)
    return (weight.flatten(1) @ columns).view_as(like)


def _there_and_back(case: Callable[[], Tensor], inputs: tuple[Tensor, ...], slope: Tensor) -> None:
    torch.autograd.grad(case(), inputs, slope)


def convolutions_share(case: Round) -> float:
    """The part of a plain round that is spent in convolutions, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        case()
    events = found.key_averages()
    own = {event.key: event.self_cpu_time_total for event in events}
    inside = (
        "aten::mkldnn_convolution",
        "aten::convolution_backward",
        "aten::convolution",
        "aten::_slow_conv2d_forward",
    )
    return float(sum(own.get(name, 0.0) for name in inside) / sum(own.values()))


def many_table(most: int) -> tuple[Table, list[dict[str, Any]]]:
    large, rows, results = world(most), [], []
    for n in (n for n in (10, 100, 1000) if n <= most):
        for place, memory in (("memory", 1 << 60), ("file", 0)):
            with anonymous_memory() as peak:
                one = ours(large, get("cosdefense"), sampled=n, memory=memory)()
            seconds, matrix = one.seconds, 4 * n * large.task.layout.size
            sizes = (f"{matrix / 1e6:.0f} MB", f"{peak[0] / 1e6:.0f} MB")
            times = (f"{seconds['train']:.3g} s", f"{1000 * seconds['train'] / n:.0f} ms", f"{seconds['defend']:.3g} s")
            rows.append((str(n), place, *sizes, *times))
            results.append({"n": n, "updates in": place, "matrix": matrix, "peak": peak[0], "seconds": dict(seconds)})
    header = ("clients", "updates in", "updates", "peak memory", "training", "a client", "CosDefense + mean")
    return Table("Many clients in one round, one step each", header, rows), results


def _met(yes: bool) -> str:
    return "met" if yes else "not met"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--most", type=int, default=1000, help="clients of the largest round")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--only-flower", action="store_true", help="print the seconds of Flower's rounds and nothing else"
    )
    given = parser.parse_args()
    if given.only_flower:
        found = flower_rounds(world(), given.repeats)
        print(json.dumps(found.seconds if found else []), flush=True)
        return
    keep_freed_memory()  # as our commands do; it serves everything that is measured in this process
    began = time.perf_counter()
    small = world()
    fast, torchs = gradient_error(small)
    share = convolutions_share(plain(small))
    rounds, round_results = round_table(small, given.repeats)
    others, other_results = other_table(small, given.repeats)
    layers, layer_results = layer_table(given.repeats)
    many, many_results = many_table(given.most)
    about = machine("byzfl", "flwr", "ray")
    about["error of a gradient"] = f"{fast:.1e}, with torch's convolutions {torchs:.1e}"
    about["convolutions in the plain loop"] = f"{100 * share:.0f} %"
    about["seconds in all"] = f"{time.perf_counter() - began:.0f}"
    results = {"round": round_results, "other": other_results, "layers": layer_results, "many": many_results}
    report(given, about, [rounds, others, layers, many], results)


if __name__ == "__main__":
    main()
