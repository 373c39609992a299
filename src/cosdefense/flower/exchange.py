"""What goes to the wrapped strategy, and what comes back from it: always models of the one known form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.serverapp.strategy import Strategy

from ..cohort import Cohort
from ..layout import Layout
from .arrays import NDArray
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

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors that defenses see: no narrower than anything in the model."""
        wide = any(array.dtype == np.float64 for array in self.arrays.values())
        return torch.float64 if wide else torch.float32

    def flat(self, arrays: Mapping[str, NDArray]) -> torch.Tensor:
        return self.layout.flatten(arrays).to(self.dtype)

    def updates(self, answers: Sequence[Answer], params: torch.Tensor) -> torch.Tensor:
        """One row per answer, written in place: a second copy of everybody's model may not fit."""
        rows = torch.empty(len(answers), len(params), dtype=self.dtype)
        for row, answer in zip(rows, answers, strict=True):
            torch.sub(self.flat(answer.arrays), params, out=row)
        return rows

    def replies(self, accepted: Sequence[Answer], cohort: Cohort, judged: Cohort) -> list[Message]:
        """One per accepted client, with the weight that the filters gave it."""
        rows = dict(zip(cohort.clients.tolist(), cohort.updates, strict=True))
        messages = []
        for answer, client, row, weight in zip(
            accepted, judged.clients.tolist(), judged.updates, judged.weights.tolist(), strict=True
        ):
            # As the client sent it, unless a filter has rewritten the update.
            arrays = answer.arrays if torch.equal(row, rows[client]) else self.named(cohort.params + row)
            messages.append(self._reply(answer, arrays, answer.metrics, weight))
        return messages

    def combined_reply(self, accepted: Sequence[Answer], weights: Sequence[float], params: torch.Tensor) -> Message:
        """The whole cohort as one client."""
        metrics = _mean_metrics([answer.metrics for answer in accepted], weights)
        return self._reply(accepted[0], self.named(params), metrics, 1.0)

    def _reply(
        self, answer: Answer, arrays: Mapping[str, NDArray], metrics: Mapping[str, Any], weight: float
    ) -> Message:
        # Counters do not travel: averaging them means nothing, and a client may send any. The strategy gets the
        # server's own, as floats, because some strategies multiply what they get in place.
        clean = {
            name: np.asarray(arrays[name], order="C") if _is_floating(own) else own.astype(np.float64)
            for name, own in self.arrays.items()
        }
        message = metrics_reply(answer, metrics, self.weighted_by, weight)
        message.content[self.arrays_key] = ArrayRecord({name: Array(array) for name, array in clean.items()})
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
                array = array.astype(own.dtype)
            if not np.isfinite(array).all():
                raise ValueError(f"{name} is not finite")
            if name.endswith("running_var"):
                array = np.maximum(array, 0)  # no filter looks at buffers, and no network survives a negative variance
            fitted[name] = Array(np.asarray(array))
        return ArrayRecord(fitted)


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
