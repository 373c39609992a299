"""Measures what `Defended` costs beside plain FedAvg: seconds and memory to aggregate one round.

python benchmarks/flower_overhead.py [clients×parameters …]    default: 200x1M 1000x100k 100x11M 10000x100k, which
needs 14 GB of memory. Prints the table of docs/performance.md. The strategies take turns in one process, so that a
busy minute of the computer affects all of them. Memory is the growth of the resident set at its peak, in a call that is
not timed; the replies themselves are not counted.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore.task_identity import TaskIdentity
from measuring import Table, Timing, machine, options, peak_memory, report, timed

from cosdefense import Cohort, Defense, Filter
from cosdefense.aggregators import Mean
from cosdefense.filters import CosDefense, MultiKrum
from cosdefense.flower import Defended
from cosdefense.flower.progress import Progress, to_checkpoint
from cosdefense.flower.sent_model import SentModel
from cosdefense.runs.run_folder import RunFolder
from cosdefense.training.models import resnet18

SIZES = ("200x1M", "1000x100k", "100x11M", "10000x100k")
# Times FedAvg and MiB; for Multi-Krum, times the rule alone and a share of the replies.
GOALS = {"200x1M": (1.3, 50), "1000x100k": (1.5, 50), "100x11M": (1.3, 400)}
KRUM_GOAL = (3.0, 1.2)
MAX_KRUM_CLIENTS = 1000  # it compares all pairs of clients
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


def measure(size: str) -> dict[str, tuple[Timing, int]]:
    """Seconds and bytes of every case."""
    n, model = int(size.split("x")[0]), make_model(size.split("x")[1])
    replies = make_replies(n, model)
    rules: dict[str, Filter] = {
        "CosDefense": CosDefense(),
        "CosDefense that rejects nobody": CosDefense(threshold="mad", k=1e9),
    }
    if n <= MAX_KRUM_CLIENTS:
        rules["Multi-Krum"] = MultiKrum()
    strategies = {"FedAvg": plain(n)} | {name: defended(n, rule) for name, rule in rules.items()}
    cases: dict[str, Callable[[], Any]] = {
        name: partial(aggregate, prepare(strategy, n, model), replies) for name, strategy in strategies.items()
    }
    times = timed(cases, patience=40.0)
    found = {name: (times[name], peak_memory(case)) for name, case in cases.items()}
    if n <= MAX_KRUM_CLIENTS:  # after the others, because the ready rows take as much memory as the replies
        cohort, defense = make_cohort(model, replies), Defense((MultiKrum(),), Mean())
        alone = timed({"": lambda: defense.judge(cohort, defense.init())}, patience=40.0)[""]
        found["Multi-Krum alone, rows ready"] = (alone, 0)
    return found


def to_rows(size: str, found: Mapping[str, tuple[Timing, int]]) -> list[tuple[str, ...]]:
    n_bytes = int(size.split("x")[0]) * sum(array.nbytes for array in make_model(size.split("x")[1]).values())
    base, rows = found["FedAvg"][0], list[tuple[str, ...]]()
    for name, (timing, extra) in found.items():
        goal, met = "–", ""
        if name.startswith("CosDefense") and size in GOALS:
            factor, megabytes = GOALS[size]
            goal = f"{factor} × FedAvg, {megabytes} MiB"
            met = _say(timing.median <= factor * base.median and extra <= megabytes * MiB)
        elif name == "Multi-Krum":
            factor, share = KRUM_GOAL
            goal = f"{factor:g} × the rule alone, {share * n_bytes / MiB:,.0f} MiB"
            alone = found["Multi-Krum alone, rows ready"][0]
            met = _say(timing.median <= factor * alone.median and extra <= share * n_bytes)
        ratio, memory = f"{timing.median / base.median:.2f}×", f"{extra / MiB:,.0f}" if extra else "–"
        rows.append((size.replace("x", " × "), name, str(timing), ratio, memory, f"{goal}{met}"))
    return rows


def _say(met: bool) -> str:
    return ": yes" if met else ": no"


def time_checkpoint() -> Timing:
    """One checkpoint per round, whatever the number of replies."""
    progress, strategy = Progress(1, to_record(make_model("11M")), Result()), defended(2, CosDefense())

    def save() -> None:
        with tempfile.TemporaryDirectory() as folder:
            RunFolder(Path(folder)).save(to_checkpoint(progress, strategy))

    return timed({"": save})[""]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("sizes", nargs="*", default=SIZES, help="clients × parameters: " + " ".join(SIZES))
    given: argparse.Namespace = parser.parse_args()
    results = {size: measure(size) for size in given.sizes}
    header = ("clients × parameters", "", "seconds: median [lowest, highest]", "against FedAvg", "MiB", "goal")
    table = Table("Aggregation of one round", header, [row for size in results for row in to_rows(size, results[size])])
    report(given, machine("flwr", "numpy"), [table], {**results, "checkpoint, 11M": time_checkpoint()})


if __name__ == "__main__":
    main()
