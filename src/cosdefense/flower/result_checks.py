"""Checks what a strategy made of the accepted updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from .. import aggregators
from ..core import Aggregator
from .arrays import to_numpy
from .norm_guard import measure_model
from .reasons import BadReply
from .reply_checks import ValidReply
from .sent_model import SentModel
from .strategy_state import UnusableResultError
from .update_norms import measure_updates

MAX_RATIO = 10.0  # coordinate-wise rules can exceed the longest of n updates by a factor of up to √n
ROUNDING = 0.01  # of the norm of the model: averages of half-precision numbers are that inexact
# Their results lie between the updates. A server optimizer has a step size of its own, and noise a length of its own.
AVERAGES: tuple[type[Strategy], ...] = (
    flower.FedAvg, flower.FedProx, flower.FedMedian, flower.FedTrimmedAvg, flower.Krum, flower.MultiKrum,
    flower.Bulyan, flower.QFedAvg,
)  # fmt: skip
AVERAGING: tuple[type[Aggregator], ...] = (
    aggregators.Mean, aggregators.Median, aggregators.TrimmedMean, aggregators.GeometricMedian, aggregators.Bulyan,
    aggregators.NormLimitedMean, aggregators.TaperedMean, aggregators.TypicalNormMean,
)  # fmt: skip


def is_average(strategy: Strategy, aggregator: Aggregator | None) -> bool:
    """Whether the result lies between the updates, so that its length can be checked."""
    return type(strategy) in AVERAGES and (aggregator is None or type(aggregator) in AVERAGING)


def check_step(model: SentModel, result: ArrayRecord, norms: Sequence[float]) -> None:
    """Refuse a result that is much farther from the model than all updates with these norms."""
    (step,) = measure_updates(model, [to_numpy(result)])
    longest = max(norms)
    if isinstance(step, BadReply):
        raise UnusableResultError(str(step))
    if not step <= MAX_RATIO * longest + ROUNDING * measure_model(model):
        raise UnusableResultError(f"the model would move by {step:.3g}, the longest accepted update has {longest:.3g}")


def find_longest(replies: Sequence[ValidReply]) -> ValidReply:
    return max(replies, key=lambda reply: reply.norm if math.isfinite(reply.norm) else math.inf)
