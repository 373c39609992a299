"""Strategies and clients of Flower's older API behind the current one, so that `Defended` can wrap them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

ARRAYS, CONFIG, METRICS, EXAMPLES, LOSS = "arrays", "config", "metrics", "num-examples", "loss"
POLL_INTERVAL = 1.0  # seconds between two queries of the connected nodes, as long as there are too few


class LegacyStrategy(Strategy):
    """A strategy of `flwr.server.strategy` as one of `flwr.serverapp.strategy`: `Defended(LegacyStrategy(s), filter)`.

    The strategy chooses the nodes, what is sent to them, and how replies are aggregated. Its `evaluate` is not called:
    pass `evaluate_fn` to `start`. Messages are those of the current API, so nodes need a ClientApp that reads them,
    such as `build_client_app` makes from a `NumPyClient`.
    """

    def __init__(self, strategy: OlderStrategy) -> None:
        self.older = strategy
        self._names: list[str] = []  # of the arrays, which the older API does not name

    def summary(self) -> None:
        """Older strategies print none."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        chosen = self.older.configure_fit(server_round, self._to_parameters(arrays), _Nodes(grid))
        return self._build_messages(chosen, MessageType.TRAIN, server_round, config)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        chosen = self.older.configure_evaluate(server_round, self._to_parameters(arrays), _Nodes(grid))
        return self._build_messages(chosen, MessageType.EVALUATE, server_round, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        results = [(_build_proxy(reply), self._build_result(reply)) for reply in replies]
        parameters, metrics = self.older.aggregate_fit(server_round, results, [])
        arrays = None if parameters is None else self._to_arrays(parameters)
        return arrays, _to_metrics(metrics)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        results = [(_build_proxy(reply), _build_evaluation(reply)) for reply in replies]
        loss, metrics = self.older.aggregate_evaluate(server_round, results, [])
        return _to_metrics(metrics if loss is None else {LOSS: loss, **metrics})

    def _build_messages(
        self, chosen: Sequence[tuple[Any, Any]], kind: str, server_round: int, config: ConfigRecord
    ) -> list[Message]:
        messages = []
        for proxy, instructions in chosen:
            sent = ConfigRecord({**config, **instructions.config, "server-round": server_round})
            content = RecordDict({ARRAYS: self._to_arrays(instructions.parameters), CONFIG: sent})
            messages.append(Message(content, dst_node_id=int(proxy.cid), message_type=kind))
        return messages

    def _build_result(self, reply: Message) -> FitRes:
        (arrays,) = reply.content.array_records.values()
        parameters = ndarrays_to_parameters([arrays[name].numpy() for name in self._names])
        return FitRes(Status(Code.OK, ""), parameters, *_split_metrics(reply))

    def _to_parameters(self, arrays: ArrayRecord) -> Parameters:
        self._names = list(arrays)
        return ndarrays_to_parameters(arrays.to_numpy_ndarrays())

    def _to_arrays(self, parameters: Parameters) -> ArrayRecord:
        values = parameters_to_ndarrays(parameters)
        return ArrayRecord({name: Array(np.asarray(value)) for name, value in zip(self._names, values, strict=True)})


def build_client_app(client_fn: Callable[[Context], NumPyClient], **options: Any) -> ClientApp:
    """A ClientApp that trains and evaluates with a `NumPyClient`. The options are those of `ClientApp`, such as mods.

    A `ClientApp(client_fn)` of Flower itself reads only messages of the older API.
    """
    app = ClientApp(**options)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records[ARRAYS]
        config = dict(message.content.config_records[CONFIG])
        values, n_examples, metrics = client_fn(context).fit(arrays.to_numpy_ndarrays(), config)  # type: ignore[arg-type]
        trained = ArrayRecord({name: Array(np.asarray(value)) for name, value in zip(arrays, values, strict=True)})
        return _reply(message, {ARRAYS: trained, METRICS: MetricRecord({**metrics, EXAMPLES: n_examples})})  # type: ignore[dict-item]

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays = message.content.array_records[ARRAYS].to_numpy_ndarrays()
        config = dict(message.content.config_records[CONFIG])
        loss, n_examples, metrics = client_fn(context).evaluate(arrays, config)  # type: ignore[arg-type]
        return _reply(message, {METRICS: MetricRecord({**metrics, LOSS: loss, EXAMPLES: n_examples})})  # type: ignore[dict-item]

    return app


class _Nodes(SimpleClientManager):
    """The nodes that are connected now, in an order that does not depend on the SuperLink."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self._grid = grid
        self._update()

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        end = time.monotonic() + timeout
        while len(self.clients) < num_clients and time.monotonic() < end:
            time.sleep(POLL_INTERVAL)
            self._update()
        return len(self.clients) >= num_clients

    def _update(self) -> None:
        nodes = sorted(self._grid.get_node_ids())
        self.clients = {str(node): GridClientProxy(node, self._grid, 0) for node in nodes}


def _build_proxy(reply: Message) -> ClientProxy:
    """Who sent a reply. The older API can also talk to a client with it, which no strategy does while it aggregates."""
    return GridClientProxy(reply.metadata.src_node_id, None, reply.metadata.run_id)  # type: ignore[arg-type]


def _split_metrics(reply: Message) -> tuple[Any, dict[str, Any]]:
    """The number of examples and the other metrics."""
    (record,) = reply.content.metric_records.values()
    metrics = dict(record)
    return metrics.pop(EXAMPLES), metrics


def _build_evaluation(reply: Message) -> EvaluateRes:
    n_examples, metrics = _split_metrics(reply)
    if LOSS not in metrics:
        raise ValueError(f"an older strategy needs the metric {LOSS!r} of every evaluation, got {sorted(metrics)}")
    return EvaluateRes(Status(Code.OK, ""), metrics.pop(LOSS), n_examples, metrics)


def _to_metrics(metrics: Any) -> MetricRecord:
    """Numbers only. Older strategies may also return text and bytes."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return MetricRecord({name: value + 0 for name, value in numbers.items()})  # a bool is not a metric


def _reply(message: Message, content: dict[str, Any]) -> Message:
    return Message(content=RecordDict(content), reply_to=message)
