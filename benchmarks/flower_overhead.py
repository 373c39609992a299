"""Measures the aggregation time of `Defended` and of plain FedAvg at the size of ResNet-18.

python benchmarks/flower_overhead.py [replies …]    default: 10 50; needs about 9 GB for 50. Prints the table of
docs/reliability.md. The strategies take turns, so that a busy minute of the computer affects all of them.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore.task_identity import TaskIdentity

from cosdefense import Filter
from cosdefense.filters import CosDefense, MultiKrum
from cosdefense.flower import Defended
from cosdefense.flower.progress import Progress, to_checkpoint
from cosdefense.runs.run_folder import RunFolder
from cosdefense.training.models import resnet18

REPEATS = 5
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


def make_replies(messages: list[Message], model: Model) -> list[Message]:
    """One reply per message: the model plus noise."""
    replies = []
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"message-{number}"
        rng = np.random.default_rng(number)
        moved = {
            name: array + rng.standard_normal(array.shape, dtype=np.float32) / 1000
            if array.dtype == np.float32
            else array
            for name, array in model.items()
        }
        content = RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": 1.0})})
        content["arrays"] = to_record(moved)
        sent = message.metadata
        metadata = Metadata(
            run_id=1, message_id=f"reply-{number}", src_node_id=sent.dst_node_id, dst_node_id=1,
            reply_to_message_id=sent.message_id, group_id="", created_at=sent.created_at, ttl=600.0,
            message_type=sent.message_type,
        )  # fmt: skip
        replies.append(make_message(metadata, content=content))
    return replies


def to_record(model: Model) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def time_aggregation(make: Callable[[], Strategy], n: int, model: Model) -> float:
    strategy = make()
    replies = make_replies(list(strategy.configure_train(1, to_record(model), ConfigRecord(), Nodes(n))), model)
    start = time.perf_counter()
    result, _ = strategy.aggregate_train(1, replies)
    seconds = time.perf_counter() - start
    assert result is not None
    return seconds


def time_checkpoint(model: Model) -> float:
    """One checkpoint per round, whatever the number of replies."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Progress(1, to_record(model), Result())
        start = time.perf_counter()
        RunFolder(Path(folder)).save(to_checkpoint(progress, defended(2, CosDefense())))
        return time.perf_counter() - start


def plain(n: int) -> FedAvg:
    return FedAvg(min_train_nodes=n, min_available_nodes=n)


def defended(n: int, rule: Filter) -> Defended:
    return Defended(plain(n), rule)


def format_row(n: int | str, name: str, times: list[float], base: float | None) -> str:
    median = statistics.median(times)
    against = f"{median / base:.1f}×" if base else "–"
    return f"| {n} | {name} | {median:.2f} [{min(times):.2f}, {max(times):.2f}] | {against} |"


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [10, 50]
    model = {name: tensor.numpy() for name, tensor in resnet18((3, 32, 32), 10).state_dict().items()}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(f"| replies | | seconds, median of {REPEATS} [lowest, highest] | against FedAvg |\n| --- | --- | --- | --- |")
    for n in sizes:
        cases: dict[str, Callable[[], Strategy]] = {
            "FedAvg": partial(plain, n),
            "Defended(FedAvg, CosDefense)": partial(defended, n, CosDefense()),
            "Defended(FedAvg, Multi-Krum)": partial(defended, n, MultiKrum()),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(REPEATS + 1):
            for name, make in cases.items():
                seconds = time_aggregation(make, n, model)
                if turn:  # the first run is slower: the process allocates new memory
                    times[name].append(seconds)
        for name in cases:
            print(format_row(n, name, times[name], statistics.median(times["FedAvg"])))
    print(
        format_row(
            "any", "the checkpoint after a round", [time_checkpoint(model) for _ in range(REPEATS + 1)][1:], None
        )
    )


if __name__ == "__main__":
    main()
