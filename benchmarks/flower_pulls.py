"""Measures how long a server takes to pull the replies of many ready nodes, if every pull takes 20 ms.

python benchmarks/flower_pulls.py [nodes ...]    default: 10, 100 and 500 nodes
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "flower"))

import numpy as np
from federations import LocalGrid, content, record, reply
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg

from cosdefense.flower.guarded_grid import GuardedGrid

PULL_SECONDS = 0.02
ARRAYS = {"weight": np.zeros((10, 10), np.float32)}


class SlowGrid(LocalGrid):
    """Every request for a reply takes some time."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        time.sleep(PULL_SECONDS)
        return super().pull_messages(message_ids)


def measure_seconds(n_nodes: int) -> float:
    grid = GuardedGrid(SlowGrid(lambda m: reply(m, content(ARRAYS, {"num-examples": 1})), range(1, n_nodes + 1)))
    strategy = FedAvg(min_train_nodes=n_nodes, min_available_nodes=n_nodes)
    messages = list(strategy.configure_train(1, record(ARRAYS), ConfigRecord(), grid))
    start = time.monotonic()
    replies = list(grid.send_and_receive(messages, timeout=600.0))
    assert len(replies) == n_nodes
    return time.monotonic() - start


if __name__ == "__main__":
    for n in [int(word) for word in sys.argv[1:]] or [10, 100, 500]:
        print(f"{n} nodes: {measure_seconds(n):.2f} s")
