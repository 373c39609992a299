"""What `Defended` adds to a round of plain FedAvg, at the size of ResNet-18: seconds of aggregation, side by side.

python benchmarks/flower_overhead.py [replies …]    default: 10 50; needs about 9 GB for 50. Prints the table of
docs/reliability.md. What is compared takes turns, so that a busy minute of the computer costs all of it the same.
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
from cosdefense.flower.run_folder import Folder, Progress
from cosdefense.training.models import resnet18

REPEATS = 5
Model = dict[str, np.ndarray[Any, np.dtype[Any]]]
logging.getLogger("flwr").setLevel(logging.ERROR)  # a line for every client that a defense rejects
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # messages are made inside a run only


class Nodes(Grid):
    """Only says who is there."""

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


def answered(messages: list[Message], model: Model) -> list[Message]:
    """One reply each, every number of it a little different."""
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
        content["arrays"] = arrays_of(moved)
        about = message.metadata
        metadata = Metadata(
            run_id=1, message_id=f"reply-{number}", src_node_id=about.dst_node_id, dst_node_id=1,
            reply_to_message_id=about.message_id, group_id="", created_at=about.created_at, ttl=600.0,
            message_type=about.message_type,
        )  # fmt: skip
        replies.append(make_message(metadata, content=content))
    return replies


def arrays_of(model: Model) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def aggregation(make: Callable[[], Strategy], n: int, model: Model) -> float:
    strategy = make()
    replies = answered(list(strategy.configure_train(1, arrays_of(model), ConfigRecord(), Nodes(n))), model)
    start = time.perf_counter()
    result, _ = strategy.aggregate_train(1, replies)
    took = time.perf_counter() - start
    assert result is not None
    return took


def checkpoint(model: Model) -> float:
    """Once a round, however many replied."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Progress(1, arrays_of(model), Result())
        start = time.perf_counter()
        Folder(Path(folder)).save(progress, defended(2, CosDefense()))
        return time.perf_counter() - start


def plain(n: int) -> FedAvg:
    return FedAvg(min_train_nodes=n, min_available_nodes=n)


def defended(n: int, rule: Filter) -> Defended:
    return Defended(plain(n), rule)


def row(n: int | str, name: str, found: list[float], base: float | None) -> str:
    median = statistics.median(found)
    against = f"{median / base:.1f}×" if base else "–"
    return f"| {n} | {name} | {median:.2f} [{min(found):.2f}, {max(found):.2f}] | {against} |"


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
        found: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(REPEATS + 1):
            for name, make in cases.items():
                took = aggregation(make, n, model)
                if turn:  # the first one pays for memory that the process has never had
                    found[name].append(took)
        for name in cases:
            print(row(n, name, found[name], statistics.median(found["FedAvg"])))
    print(row("any", "the checkpoint after a round", [checkpoint(model) for _ in range(REPEATS + 1)][1:], None))


if __name__ == "__main__":
    main()
