"""What goes to the wrapped strategy, and what comes back from it: always models of the one known form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.serverapp.strategy import Strategy

from ..core import Cohort, Layout
from .arrays import SERIALIZATION, NDArray
from .guard import Answer

METRICS = "metrics"  # the record of metrics in messages that are rebuilt


@dataclass(frozen=True, eq=False)
class Exchange:
    """With one strategy, about one global model."""

    arrays: Mapping[str, NDArray]  # the global model
    layout: Layout
    weighted_by: str  # the metric that says how much a reply counts
    arrays_key: str  # the record of arrays in a message

    @classmethod
    def of(cls, strategy: Strategy, arrays: Mapping[str, NDArray], head: str | None) -> Exchange:
        return cls(arrays, Layout.of(arrays, head), weighted_by(strategy), arrays_key(strategy))

    @cached_property
    def params(self) -> torch.Tensor:
        """The global model as a vector, no narrower than anything in it."""
        wide = any(array.dtype == np.float64 for array in self.arrays.values())
        return torch.from_numpy(
            np.concatenate(
                [self.arrays[name].reshape(-1) for name, _ in self.layout.shapes],
                dtype=np.float64 if wide else np.float32,
            )
        )

    def updates(self, answers: Sequence[Answer]) -> torch.Tensor:
        """One row per answer, written in place: a second copy of everybody's model may not fit."""
        start = self.params.numpy()
        # numpy's memory, because it asks for large pages: torch's takes four times as long to be written first.
        rows = np.empty((len(answers), len(start)), start.dtype)
        with np.errstate(over="ignore"):  # the difference of finite numbers may be infinite: the defense rejects it
            for row, answer in zip(rows, answers, strict=True):
                for name, where in self.layout.slices.items():
                    array = answer.arrays[name]
                    shape = array.shape
                    np.subtract(array, start[where].reshape(shape), out=row[where].reshape(shape))
        return torch.from_numpy(rows)

    def replies(self, accepted: Sequence[Answer], cohort: Cohort, judged: Cohort) -> list[Message]:
        """One per accepted client, with the weight that the filters gave it."""
        rows = dict(zip(cohort.clients.tolist(), cohort.updates, strict=True))
        messages = []
        for answer, client, row, weight in zip(
            accepted, judged.clients.tolist(), judged.updates, judged.weights.tolist(), strict=True
        ):
            # As the client sent it, unless a filter has rewritten the update.
            rewritten = not np.array_equal(row.numpy(), rows[client].numpy())
            arrays = _written(self.named(cohort.params + row)) if rewritten else self._received(answer)
            messages.append(self._reply(answer, arrays, answer.metrics, weight))
        return messages

    def combined_reply(self, accepted: Sequence[Answer], weights: Sequence[float], params: torch.Tensor) -> Message:
        """The whole cohort as one client."""
        metrics = _mean_metrics([answer.metrics for answer in accepted], weights)
        return self._reply(accepted[0], _written(self.named(params)), metrics, 1.0)

    def _received(self, answer: Answer) -> dict[str, Array]:
        """A client's arrays, with its own bytes: they are known to be just what is expected."""
        (sent,) = answer.message.content.array_records.values()
        return {
            name: Array(str(array.dtype), array.shape, SERIALIZATION, sent[name].data)
            if array.flags.c_contiguous
            else Array(np.ascontiguousarray(array))
            for name, array in answer.arrays.items()
        }

    def _reply(self, answer: Answer, arrays: Mapping[str, Array], metrics: Mapping[str, Any], weight: float) -> Message:
        # Counters do not travel: averaging them means nothing, and a client may send any. The strategy gets the
        # server's own, as floats, because some strategies multiply what they get in place.
        clean = {
            name: arrays[name] if _is_floating(own) else Array(own.astype(np.float64))
            for name, own in self.arrays.items()
        }
        message = metrics_reply(answer, metrics, self.weighted_by, weight)
        message.content[self.arrays_key] = ArrayRecord(clean)
        return message

    def named(self, vector: torch.Tensor) -> dict[str, NDArray]:
        """The arrays of a vector; those that are in no vector are the server's own."""
        tensors = self.layout.unflatten(vector)
        return {
            name: tensors[name].numpy().astype(own.dtype) if name in tensors else own
            for name, own in self.arrays.items()
        }

    def model_of(self, record: ArrayRecord) -> ArrayRecord:
        """The new model in the form of the old one; an error if it cannot be."""
        fitted = {}
        for name, own in self.arrays.items():
            if not _is_floating(own):
                fitted[name] = Array(own)
                continue
            array = np.asarray(record[name].numpy())
            if array.shape != own.shape:
                raise ValueError(f"{name} has shape {array.shape} instead of {own.shape}")
            with np.errstate(over="ignore"):  # too large for the model's own dtype: infinity, refused below
                fitting = array.astype(own.dtype, copy=False)
            if not np.isfinite(fitting).all():
                raise ValueError(f"{name} is not finite")
            if name.endswith("running_var"):  # no filter looks at buffers, and no network survives a negative variance
                fitting = np.maximum(fitting, 0)
            fitted[name] = record[name] if fitting is array else Array(np.asarray(fitting))
        return ArrayRecord(fitted)


def _written(arrays: Mapping[str, NDArray]) -> dict[str, Array]:
    return {name: Array(np.asarray(array, order="C")) for name, array in arrays.items()}


def metrics_reply(answer: Answer, metrics: Mapping[str, Any], weighted_by: str, weight: float) -> Message:
    """A clean message with only what is known."""
    content = RecordDict({METRICS: MetricRecord({**metrics, weighted_by: weight})})
    return make_message(metadata=answer.message.metadata, content=content)


def weighted_by(strategy: Strategy) -> str:
    return str(_attribute(strategy, "weighted_by_key", "num-examples"))


def arrays_key(strategy: Strategy) -> str:
    return str(_attribute(strategy, "arrayrecord_key", "arrays"))


def _attribute(strategy: Strategy, name: str, default: str) -> Any:
    """Of the strategy, or of the one it wraps itself."""
    while strategy is not None:
        if hasattr(strategy, name):
            return getattr(strategy, name)
        strategy = getattr(strategy, "strategy", None)  # type: ignore[assignment]
    return default


def _is_floating(array: NDArray) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))


def _mean_metrics(metrics: Sequence[Mapping[str, Any]], weights: Sequence[float]) -> dict[str, Any]:
    shares = np.array(weights) / sum(weights)
    return {
        key: [float(v) for v in shares @ np.array([m[key] for m in metrics], dtype=np.float64)]
        if isinstance(metrics[0][key], list)
        else float(shares @ np.array([m[key] for m in metrics], dtype=np.float64))
        for key in metrics[0]
    }
