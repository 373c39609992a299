"""Puts the combined buffers (BatchNorm statistics) into messages for a strategy, and into the model it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from ..ops import median
from .reply_checks import ValidReply
from .sent_model import SentModel
from .strategy_state import walk_strategies

# Their noise covers the whole model. Buffers that are put in afterwards would be without it.
PRIVATE = (
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
    flower.DifferentialPrivacyClientSideFixedClipping,
    flower.DifferentialPrivacyClientSideAdaptiveClipping,
)


def combine_buffers(model: SentModel, replies: Sequence[ValidReply]) -> dict[str, Array]:
    """The new buffers by name, in the dtypes of the model: the median over all replies, rejected ones included."""
    model = model.only([name for name, _ in model.layout.shapes if name not in model.layout.trainable])
    if not model.layout.size:
        return {}
    vector = model.params + median(model.compute_updates([reply.arrays for reply in replies]))
    combined = {}
    for name, tensor in model.layout.unflatten(vector).items():
        values = tensor.numpy().astype(model.arrays[name].dtype)
        combined[name] = Array(np.maximum(values, 0) if name.endswith("running_var") else values)
    return combined


def set_buffers(record: ArrayRecord, buffers: Mapping[str, Array]) -> None:
    """In place: a new record would construct all its arrays again."""
    for name, array in buffers.items():
        record[name] = array


def is_private(strategy: Strategy) -> bool:
    """Whether the strategy, or one that it wraps, adds noise for differential privacy."""
    return any(isinstance(inner, PRIVATE) for inner in walk_strategies(strategy))
