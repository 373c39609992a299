"""Watches a run while it is made: alarms, a live page, Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runs.observer import RoundObserver
from .alarm_log import Alarms
from .alarms import Alarm, find_alarms
from .rules import AccuracyFell, NodeLost, NodeRejected, RoundsSkipped, Rule

if TYPE_CHECKING:
    from .prometheus import PrometheusMetrics

__all__ = [
    "AccuracyFell",
    "Alarm",
    "Alarms",
    "NodeLost",
    "NodeRejected",
    "PrometheusMetrics",
    "RoundObserver",
    "RoundsSkipped",
    "Rule",
    "find_alarms",
]

# It alone needs the library of an extra.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "PrometheusMetrics":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .prometheus import PrometheusMetrics

        return PrometheusMetrics

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
