"""What a Flower strategy reads from replies: under which names, and which metrics decide what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping, QFedAvg, Strategy
from flwr.supercore.differential_privacy import KEY_NORM_BIT

from .strategy_state import walk_strategies


@dataclass(frozen=True)
class StrategyMetrics:
    """The metrics that a strategy, or one that it wraps, computes the model from. It only averages all others.

    Args:
        weight: The number of examples, or another weight.
        loss: The loss whose power is the weight in QFedAvg. None: no strategy reads a loss.
        bit: 0 or 1, from which clipping at the client adapts its norm. None: no strategy reads one.
    """

    weight: str
    loss: str | None = None
    bit: str | None = None

    @classmethod
    def of(cls, strategy: Strategy) -> StrategyMetrics:
        weight, loss, bit = str(find_attribute(strategy, "weighted_by_key", "num-examples")), None, None
        for part in walk_strategies(strategy):
            if isinstance(part, QFedAvg) and part.q != 0:  # with q = 0 it is FedAvg
                loss = part.train_loss_key
            if isinstance(part, DifferentialPrivacyClientSideAdaptiveClipping):
                bit = KEY_NORM_BIT
        return cls(weight, loss, bit)


def get_arrays_key(strategy: Strategy) -> str:
    """The record of arrays in a message."""
    return str(find_attribute(strategy, "arrayrecord_key", "arrays"))


def find_attribute(strategy: Strategy, name: str, default: Any) -> Any:
    """Of the strategy, or of a strategy that it wraps."""
    return next((getattr(s, name) for s in walk_strategies(strategy) if hasattr(s, name)), default)
