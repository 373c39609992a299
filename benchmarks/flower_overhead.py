"""Measures what `Defended` costs beside plain FedAvg: seconds and memory to aggregate one round.

python benchmarks/flower_overhead.py [clients×parameters …]    default: 200x1M 1000x100k 100x11M 10000x100k, which
needs 14 GB of memory. Prints the table of docs/performance.md. The strategies take turns in one process, so that a
busy minute of the computer affects all of them. CPU seconds are those of all threads: they hardly depend on what else
the computer does. Memory is the growth of the resident set at its peak, in a call that is not timed; the replies
themselves are not counted.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity
from measuring import Table, Timing, machine, options, peak_memory, report

from cosdefense import Cohort, Defense, Filter
from cosdefense.aggregators import Mean
from cosdefense.filters import CosDefense, MultiKrum
from cosdefense.flower import Defended
from cosdefense.flower.sent_model import SentModel
from cosdefense.training.models import resnet18

SIZES = ("200x1M", "1000x100k", "100x11M", "10000x100k")
# Times FedAvg and MiB; for Multi-Krum, times the rule alone and a share of the replies.
GOALS = {"200x1M": (1.3, 50), "1000x100k": (1.5, 50), "100x11M": (1.3, 400)}
KRUM_GOAL = (3.0, 1.2)
KRUM_ALONE = "Multi-Krum alone, rows ready"
MAX_KRUM_CLIENTS = 1000  # it compares all pairs of clients
REPEATS, SLOW = 3, 10.0  # a case that took so many seconds in the turn that does not count is timed once
MiB = 2**20
Model = dict[str, np.ndarray[Any, np.dtype[Any]]]
logging.getLogger("flwr").setLevel(logging.ERROR)  # one line per rejected client otherwise
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower allows messages only inside a run


class Nodes(Grid):
    """Only lists node ids."""

    def __init__(self, n: int) -> None:
        self.n = n

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(range(2, self.n + 2))

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    set_run = create_message = push_messages = pull_messages = send_and_receive = _refuse


def make_model(n_parameters: str) -> Model:
    """ResNet-18 for 11M; otherwise a perceptron with four hidden layers and a head of ten classes."""
    if n_parameters == "11M":
        return {name: tensor.numpy() for name, tensor in resnet18((3, 32, 32), 10).state_dict().items()}
    total = {"1M": 1_000_000, "100k": 100_000}[n_parameters]
    width = int((total / 4) ** 0.5) - 2
    rng = np.random.default_rng(0)
    shapes = {f"hidden.{i}.weight": (width, width) for i in range(4)} | {"head.weight": (10, width), "head.bias": (10,)}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def make_replies(n: int, model: Model) -> list[Message]:
    """One reply per node: the model plus noise that differs from node to node."""
    noise = {
        name: np.random.default_rng(1).standard_normal(2 * array.size, dtype=np.float32) / 1000
        for name, array in model.items()
        if array.dtype == np.float32
    }
    replies = []
    for node in Nodes(n).get_node_ids():
        moved = {
            name: array + noise[name][(start := 7919 * node % array.size) : start + array.size].reshape(array.shape)
            if name in noise
            else array
            for name, array in model.items()
        }
        content = RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": 1.0}), "arrays": to_record(moved)})
        metadata = Metadata(
            run_id=1, message_id=f"reply-{node}", src_node_id=node, dst_node_id=1, group_id="",
            reply_to_message_id=f"message-{node}", created_at=0.0, ttl=600.0, message_type="train",
        )  # fmt: skip
        replies.append(make_message(metadata, content=content))
    return replies


def to_record(model: Model) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def prepare(strategy: Strategy, n: int, model: Model) -> Strategy:
    """Sends the messages of a round, as far as the strategy can see."""
    for message in strategy.configure_train(1, to_record(model), ConfigRecord(), Nodes(n)):
        message.metadata.__dict__["_message_id"] = f"message-{message.metadata.dst_node_id}"
    return strategy


def aggregate(strategy: Strategy, replies: list[Message]) -> None:
    result, _ = strategy.aggregate_train(1, replies)
    assert result is not None


def plain(n: int) -> FedAvg:
    return FedAvg(min_train_nodes=n, min_available_nodes=n)


def defended(n: int, rule: Filter) -> Defended:
    return Defended(plain(n), rule)


def make_cohort(model: Model, replies: list[Message]) -> Cohort:
    sent = SentModel.of(model)
    records = [reply.content.array_records["arrays"] for reply in replies]
    arrays = [{name: sent.specs[name].view(array) for name, array in record.items()} for record in records]
    return Cohort.of(sent.compute_updates(arrays), sent.params, sent.layout)


@dataclass(frozen=True)
class Cost:
    """Of one case: what it took by the clock, of all cores, and at its peak in bytes."""

    wall: Timing
    cpu: Timing
    memory: int | None = None


def take_turns(cases: Mapping[str, Callable[[], Any]], *, memory: bool = True) -> dict[str, Cost]:
    """Every case in turns, after one turn that does not count."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for turn in range(1 + REPEATS):
        for name, case in cases.items():
            if turn > 1 and times[name][0][0] > SLOW:
                continue
            wall, cpu = time.perf_counter(), time.process_time()
            case()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: Cost(
            Timing(tuple(wall for wall, _ in times[name][1:])),
            Timing(tuple(cpu for _, cpu in times[name][1:])),
            peak_memory(case) if memory else None,
        )
        for name, case in cases.items()
    }


def measure(size: str) -> dict[str, Cost]:
    n, model = int(size.split("x")[0]), make_model(size.split("x")[1])
    replies = make_replies(n, model)
    rules: dict[str, Filter] = {
        "CosDefense": CosDefense(),
        "CosDefense that rejects nobody": CosDefense(threshold="mad", k=1e9),
    }
    if n <= MAX_KRUM_CLIENTS:
        rules["Multi-Krum"] = MultiKrum()
    strategies = {"FedAvg": plain(n)} | {name: defended(n, rule) for name, rule in rules.items()}
    costs = take_turns({k: partial(aggregate, prepare(s, n, model), replies) for k, s in strategies.items()})
    if n <= MAX_KRUM_CLIENTS:  # after the others, because the ready rows take as much memory as the replies
        cohort, defense = make_cohort(model, replies), Defense((MultiKrum(),), Mean())
        costs |= take_turns({KRUM_ALONE: lambda: defense.judge(cohort, defense.init())}, memory=False)
    return costs


def to_rows(size: str, costs: Mapping[str, Cost]) -> list[tuple[str, ...]]:
    n_bytes = int(size.split("x")[0]) * sum(array.nbytes for array in make_model(size.split("x")[1]).values())
    base, rows = costs["FedAvg"], list[tuple[str, ...]]()
    for name, cost in costs.items():
        goal, extra = "–", cost.memory or 0
        if name.startswith("CosDefense") and size in GOALS:
            factor, megabytes = GOALS[size]
            met = cost.wall.median <= factor * base.wall.median and extra <= megabytes * MiB
            goal = f"{factor} × FedAvg, {megabytes} MiB: {_say(met)}"
        elif name == "Multi-Krum":
            factor, share = KRUM_GOAL
            met = cost.wall.median <= factor * costs[KRUM_ALONE].wall.median and extra <= share * n_bytes
            goal = f"{factor:g} × alone, {share * n_bytes / MiB:,.0f} MiB: {_say(met)}"
        ratios = f"{cost.wall.median / base.wall.median:.2f}×", f"{cost.cpu.median / base.cpu.median:.2f}×"
        memory = "–" if cost.memory is None else f"{extra / MiB:,.0f}"
        rows.append((name, str(cost.wall), *ratios, memory, goal))
    return rows


def _say(met: bool) -> str:
    return "yes" if met else "no"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("sizes", nargs="*", default=SIZES, help="clients × parameters: " + " ".join(SIZES))
    given: argparse.Namespace = parser.parse_args()
    header = ("", "median [lowest, highest]", "of FedAvg", "CPU, of FedAvg", "MiB", "goal")
    results = {}
    for size in given.sizes:  # printed at once: the next one may not fit into memory
        results[size] = measure(size)
        table = Table(f"{size.replace('x', ' clients × ')} parameters", header, to_rows(size, results[size]))
        print("\n" + (table.markdown() if given.markdown else table.text()), flush=True)
    report(given, machine("flwr", "numpy"), [], results)


if __name__ == "__main__":
    main()
