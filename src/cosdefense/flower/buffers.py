"""Combines the buffers (BatchNorm statistics) of all replies, and puts them into messages and models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from ..ops import median, row_norms
from .norm_guard import MAX_RATIO, find_lower_median
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


@dataclass(frozen=True, eq=False)
class CombinedBuffers:
    arrays: Mapping[str, Array] = field(default_factory=dict)  # by name, in the dtypes of the model
    unusual: Mapping[int, float] = field(default_factory=dict)  # node → how many times the usual distance to the median


def combine_buffers(model: SentModel, replies: Sequence[ValidReply]) -> CombinedBuffers:
    """The median over all replies, rejected ones included."""
    model = model.only([name for name, _ in model.layout.shapes if name not in model.layout.trainable])
    if not model.layout.size:
        return CombinedBuffers()
    updates = model.compute_updates([reply.arrays for reply in replies])
    middle = median(updates)
    combined = {}
    for name, tensor in model.layout.unflatten(model.params + middle).items():
        values = tensor.numpy().astype(model.arrays[name].dtype)
        combined[name] = Array(np.maximum(values, 0) if name.endswith("running_var") else values)
    distances = dict(zip([reply.node for reply in replies], row_norms(updates.sub_(middle)).tolist(), strict=True))
    return CombinedBuffers(combined, _find_unusual(distances))


def _find_unusual(distances: Mapping[int, float]) -> dict[int, float]:
    """The nodes that are far more distant than most. They are named, not rejected: the median is not theirs."""
    usual = find_lower_median(list(distances.values()))
    return {
        node: distance / usual if usual else math.inf
        for node, distance in distances.items()
        if not distance <= MAX_RATIO * usual
    }


def set_buffers(record: ArrayRecord, buffers: Mapping[str, Array]) -> None:
    """In place: a new record would construct all its arrays again."""
    for name, array in buffers.items():
        record[name] = array


def is_private(strategy: Strategy) -> bool:
    """Whether the strategy, or one that it wraps, adds noise for differential privacy."""
    return any(isinstance(inner, PRIVATE) for inner in walk_strategies(strategy))
