"""Converts replies to updates for the defense, and the outcome to messages for the wrapped strategy and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.serverapp.strategy import FedAvg, FedProx, Strategy

from ..core import Judged, Layout
from .arrays import NDArray
from .reply_checks import ValidReply
from .rewritten_array import RewrittenArray
from .sent_model import SentModel
from .strategy_inputs import StrategyMetrics, get_arrays_key
from .strategy_state import UnusableResultError

METRICS = "metrics"  # the record of metrics in rebuilt messages
READERS = (FedAvg, FedProx)  # strategies that only read the arrays of messages; a subclass may do anything


@dataclass(frozen=True, eq=False)
class ReplyConverter:
    """For one strategy and one global model. All models it returns have the names, shapes and dtypes of that model."""

    model: SentModel
    weight_key: str  # the metric that holds the weight of a reply
    arrays_key: str  # the record of arrays in a message
    reads_only: bool  # whether the strategy leaves the arrays of messages as they are, instead of computing in place

    @classmethod
    def of(cls, strategy: Strategy, arrays: Mapping[str, NDArray], head: str | None) -> ReplyConverter:
        weight_key, arrays_key = StrategyMetrics.of(strategy).weight, get_arrays_key(strategy)
        return cls(SentModel.of(arrays, head), weight_key, arrays_key, type(strategy) in READERS)

    @property
    def arrays(self) -> Mapping[str, NDArray]:
        return self.model.arrays

    @property
    def layout(self) -> Layout:
        return self.model.layout

    @property
    def params(self) -> torch.Tensor:
        return self.model.params

    def to_messages(self, accepted: Sequence[ValidReply], judged: Judged) -> list[Message]:
        """One message per accepted client, with the weight that the filters gave it.

        The arrays are those that were received, without a copy, unless a filter has changed the update.
        """
        weights = judged.remaining.weights
        if self.reads_only:
            for array in (array for reply in accepted for array in reply.serialized.values()):
                array.share()
        arrays = self._serialize_rewritten(accepted, judged) if judged.rewritten else [r.serialized for r in accepted]
        return [
            self._build_message(reply, own, reply.metrics, weight)
            for reply, own, weight in zip(accepted, arrays, weights[weights != 0].tolist(), strict=True)
        ]

    def _serialize_rewritten(self, accepted: Sequence[ValidReply], judged: Judged) -> list[Mapping[str, Array]]:
        """Filters that rewrite rows leave many of them as they are: these stay as they were received."""
        kept = judged.remaining.weights.nonzero().flatten().tolist()
        updates, rows = judged.remaining.updates, judged.rows.tolist()
        return [
            reply.serialized
            if torch.equal(updates[place], judged.received.updates[rows[place]])
            else self._rewrite(updates[place].numpy())
            for reply, place in zip(accepted, kept, strict=True)
        ]

    def _rewrite(self, update: NDArray) -> dict[str, Array]:
        """Arrays that hold no copy of the update. Integer arrays are not part of it and replaced by the server's."""
        start = self.params.numpy()
        return {
            name: RewrittenArray(self.arrays[name], start[where], update[where])
            for name, where in self.layout.slices.items()
        }

    def to_combined_message(
        self, accepted: Sequence[ValidReply], weights: Sequence[float], params: torch.Tensor
    ) -> Message:
        """The aggregate of all accepted clients, as if it came from one client."""
        metrics = _average_metrics([reply.metrics for reply in accepted], weights)
        return self._build_message(accepted[0], _serialize(self.to_arrays(params)), metrics, 1.0)

    def to_arrays(self, vector: torch.Tensor) -> dict[str, NDArray]:
        """The arrays of a vector. Arrays that are not in the vector (integers) are the server's own."""
        tensors = self.layout.unflatten(vector)
        return {
            name: tensors[name].numpy().astype(own.dtype) if name in tensors else own
            for name, own in self.arrays.items()
        }

    def to_model(self, record: ArrayRecord) -> ArrayRecord:
        """The new model, with the shapes and dtypes of the old one. Raises ValueError if that is impossible."""
        fitted = {}
        for name, own in self.arrays.items():
            if not _is_floating(own):
                fitted[name] = Array(own)
                continue
            array = np.asarray(record[name].numpy())
            if array.shape != own.shape:
                raise ValueError(f"{name} has shape {array.shape} instead of {own.shape}")
            with np.errstate(over="ignore"):  # too large for the model's dtype becomes infinity, which is refused below
                values = array.astype(own.dtype, copy=False)
            if not np.isfinite(values).all():
                raise UnusableResultError(f"{name} is not finite")
            if name.endswith("running_var"):  # filters do not look at buffers, and a negative variance gives NaN
                values = np.maximum(values, 0)
            fitted[name] = record[name] if values is array else Array(np.asarray(values))
        return ArrayRecord(fitted)

    def _build_message(
        self, reply: ValidReply, arrays: Mapping[str, Array], metrics: Mapping[str, Any], weight: float
    ) -> Message:
        message = build_metrics_message(reply, metrics, self.weight_key, weight)
        clean = ArrayRecord()
        for name in self.arrays:  # not ArrayRecord(arrays), which would construct every Array again
            clean[name] = self._counters[name] if name in self._counters else arrays[name]
        message.content[self.arrays_key] = clean
        return message

    @cached_property
    def _counters(self) -> dict[str, Array]:
        """What the strategy gets for integer arrays: the server's own, as floats.

        They are counters: their average means nothing, and a client may send any number. As floats, because some
        strategies multiply arrays in place.
        """
        return {
            name: Array(np.asarray(own.astype(np.float64)))
            for name, own in self.arrays.items()
            if not _is_floating(own)
        }


def build_metrics_message(reply: ValidReply, metrics: Mapping[str, Any], weight_key: str, weight: float) -> Message:
    """A new message that holds only these metrics and the weight. The client wrote nothing of its metadata."""
    content = RecordDict({METRICS: MetricRecord({**metrics, weight_key: weight})})
    sent = reply.request.metadata
    metadata = Metadata(
        run_id=sent.run_id, message_id="", src_node_id=reply.node, dst_node_id=sent.src_node_id,
        reply_to_message_id=sent.message_id, group_id=sent.group_id, created_at=sent.created_at, ttl=sent.ttl,
        message_type=sent.message_type,
    )  # fmt: skip
    return make_message(metadata=metadata, content=content)


def _serialize(arrays: Mapping[str, NDArray]) -> dict[str, Array]:
    return {name: Array(np.asarray(array, order="C")) for name, array in arrays.items()}


def _is_floating(array: NDArray) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))


def _average_metrics(metrics: Sequence[Mapping[str, Any]], weights: Sequence[float]) -> dict[str, Any]:
    shares = np.array(weights) / sum(weights)
    return {
        key: [float(v) for v in shares @ np.array([m[key] for m in metrics], dtype=np.float64)]
        if isinstance(metrics[0][key], list)
        else float(shares @ np.array([m[key] for m in metrics], dtype=np.float64))
        for key in metrics[0]
    }
