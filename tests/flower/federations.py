"""Federations in process: messages as a SuperLink would deliver them, and a grid that can be made to misbehave."""

from __future__ import annotations

import itertools
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
# A message cannot be made outside a run: this process is one.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
NODES = tuple(2**63 + 11 * k if k % 2 else 100 + k for k in range(8))  # identities use all 64 bits


def model(seed: int = 0) -> dict[str, NDArray]:
    """Two layers, statistics and a counter, as a `state_dict` with BatchNorm has them."""
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
    """An honest client's model: all move much the same way, each a little differently."""
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


def arrays_of(found: Any) -> dict[str, NDArray]:
    """The arrays of a record."""
    return {name: array.numpy() for name, array in found.items()}


def content(arrays: Arrays | None, metrics: Mapping[str, Any]) -> RecordDict:
    built = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays is not None:
        built["arrays"] = record(arrays)
    return built


def reply(message: Message, body: RecordDict | None = None, error: Error | None = None, **changes: Any) -> Message:
    """What the node that got this message answers."""
    about = message.metadata
    known = {
        "run_id": about.run_id, "message_id": f"reply-{about.message_id}-{about.dst_node_id}",
        "src_node_id": about.dst_node_id, "dst_node_id": 1, "reply_to_message_id": about.message_id, "group_id": "",
        "created_at": about.created_at, "ttl": 60.0, "message_type": about.message_type,
    }  # fmt: skip
    return make_message(Metadata(**{**known, **changes}), content=body, error=error)


Behave = Callable[[Message], Message | Exception | None]  # an exception: pulling raises it; None: nothing comes


class LocalGrid(Grid):
    """Delivers at once. `behave` says what a node does with a message; by default it trains honestly."""

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
        raise AssertionError("deprecated in Flower: nothing here may call it")

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
        found = []
        for identifier in message_ids:
            answer = self.behave(self.waiting[identifier])
            if isinstance(answer, Exception):
                raise answer
            found += [answer] if answer else []
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower does it."""
        end = time.monotonic() + (timeout or 5)
        identifiers = set(self.push_messages(messages))
        found: list[Message] = []
        while identifiers and time.monotonic() < end:
            found += self.pull_messages(identifiers)
            identifiers -= {message.metadata.reply_to_message_id for message in found}
        return found


def honest(message: Message) -> Message:
    """Trains, or evaluates, as the message asks."""
    arrays = arrays_of(message.content["arrays"])
    if message.metadata.message_type == "evaluate":
        return reply(message, content(None, {"accuracy": 0.5, "num-examples": 10}))
    number = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
    node = message.metadata.dst_node_id
    return reply(
        message, content(trained(arrays, node, number), {"loss": 1.0 + node % 7, "num-examples": 10 + node % 5})
    )


def asked(strategy: Any, arrays: Arrays, grid: Grid | None = None, server_round: int = 1) -> list[Message]:
    """The messages of a round, as they look once they were sent."""
    grid = grid or LocalGrid(honest)
    messages = list(strategy.configure_train(server_round, record(arrays), ConfigRecord(), grid))
    list(grid.push_messages(messages))
    return messages
