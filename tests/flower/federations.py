"""Federations inside one process: messages as a SuperLink delivers them, and a grid with faults."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from cosdefense.flower.arrays import NDArray

Arrays = Mapping[str, NDArray]
# Flower allows messages only inside a run, so this process claims to be one.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
NODES = tuple(2**63 + 11 * k if k % 2 else 100 + k for k in range(8))  # node ids use all 64 bits
# The nodes of a grid answer in threads, and numpy parses headers with `ast`: two threads that do so at once can get
# "SystemError: AST constructor recursion depth mismatch" from Python 3.11 (python/cpython#106905).
PARSING = threading.RLock()


def model(seed: int = 0) -> dict[str, NDArray]:
    """Two layers, and the statistics and the counter of a BatchNorm layer, as in a `state_dict`."""
    rng = np.random.default_rng(seed)
    return {
        "body.weight": rng.normal(size=(6, 4)).astype(np.float32),
        "norm.running_mean": rng.normal(size=6).astype(np.float32),
        "norm.running_var": rng.uniform(0.5, 2, size=6).astype(np.float32),
        "norm.num_batches_tracked": np.array(7),
        "head.weight": rng.normal(size=(3, 6)).astype(np.float32),
        "head.bias": np.zeros(3, dtype=np.float32),
    }


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def trained(start: Arrays, node: int, server_round: int = 1, size: float = 0.01) -> dict[str, NDArray]:
    """The model of an honest client: a step in a common direction, plus noise."""
    own = np.random.default_rng([node % 2**32, server_round])
    common = np.random.default_rng([7, server_round])
    moved: dict[str, NDArray] = {}
    for name, array in start.items():
        if not np.issubdtype(array.dtype, np.floating):
            moved[name] = array + 1
            continue
        step = common.normal(size=array.shape) + 0.3 * own.normal(size=array.shape)
        moved[name] = (array + size * step).astype(array.dtype)
    return moved


def to_arrays(arrays: Any) -> dict[str, NDArray]:
    """The numpy arrays of a record."""
    with PARSING:
        return {name: array.numpy() for name, array in arrays.items()}


def content(arrays: Arrays | None, metrics: Mapping[str, Any]) -> RecordDict:
    built = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays is not None:
        built["arrays"] = record(arrays)
    return built


def reply(message: Message, body: RecordDict | None = None, error: Error | None = None, **changes: Any) -> Message:
    """The reply of the node that got this message; `changes` replace fields of its metadata."""
    metadata = message.metadata
    fields = {
        "run_id": metadata.run_id, "message_id": f"reply-{metadata.message_id}-{metadata.dst_node_id}",
        "src_node_id": metadata.dst_node_id, "dst_node_id": 1, "reply_to_message_id": metadata.message_id,
        "group_id": "", "created_at": metadata.created_at, "ttl": 60.0, "message_type": metadata.message_type,
    }  # fmt: skip
    return make_message(Metadata(**{**fields, **changes}), content=body, error=error)


Behave = Callable[[Message], Message | Exception | None]  # an exception is raised by the pull; None: no reply


class LocalGrid(Grid):
    """Delivers at once. `behave` returns the reply of a node to a message."""

    def __init__(self, behave: Behave, nodes: Iterable[int] = NODES) -> None:
        self.behave, self.nodes = behave, tuple(nodes)
        self.waiting: dict[str, Message] = {}
        self.pulls = 0
        self._numbers = itertools.count(1)

    @property
    def run(self) -> Any:
        return None

    def set_run(self, *_: Any, **__: Any) -> None: ...

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise AssertionError("create_message is deprecated in Flower and must not be called")

    def get_node_ids(self) -> Iterable[int]:
        return reversed(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        for message in messages:
            identifier = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = identifier
            self.waiting[identifier] = message
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulls += 1
        replies = []
        for identifier in message_ids:
            answer = self.behave(self.waiting[identifier])
            if isinstance(answer, Exception):
                raise answer
            replies += [answer] if answer else []
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Like the grid of Flower."""
        end = time.monotonic() + (timeout or 5)
        identifiers = set(self.push_messages(messages))
        replies: list[Message] = []
        while identifiers and time.monotonic() < end:
            replies += self.pull_messages(identifiers)
            identifiers -= {message.metadata.reply_to_message_id for message in replies}
        return replies


def honest(message: Message) -> Message:
    """The reply of an honest node to a training or an evaluation message."""
    arrays = to_arrays(message.content["arrays"])
    if message.metadata.message_type == "evaluate":
        return reply(message, content(None, {"accuracy": 0.5, "num-examples": 10}))
    number = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
    node = message.metadata.dst_node_id
    return reply(
        message, content(trained(arrays, node, number), {"loss": 1.0 + node % 7, "num-examples": 10 + node % 5})
    )


def send_round(strategy: Any, arrays: Arrays, grid: Grid | None = None, server_round: int = 1) -> list[Message]:
    """Send the messages of a round through a grid, which assigns their ids, and return them."""
    grid = grid or LocalGrid(honest)
    messages = list(strategy.configure_train(server_round, record(arrays), ConfigRecord(), grid))
    list(grid.push_messages(messages))
    return messages
