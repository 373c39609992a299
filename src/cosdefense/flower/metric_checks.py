"""Checks the metrics of replies. Strategies average them, and some compute the model from them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .reasons import BadReply, Reason
from .strategy_inputs import StrategyMetrics

Metric = int | float | list[int] | list[float]
MAX_METRICS = 1_000  # names in a reply
MAX_NAME_LENGTH = 200  # characters
MAX_NUMBERS = 10_000  # in all lists of a reply
MAX_LOSS_RATIO = 100.0  # between a loss and the median of the round, where a strategy computes with the loss


def read_metrics(record: Any, reads: StrategyMetrics) -> tuple[float, dict[str, Metric]]:
    """The number of examples, and the other metrics in the order of their names."""
    _check_size(record)
    metrics: dict[str, Any] = dict(sorted(record.items()))
    examples = _read_examples(metrics, reads.weight)
    del metrics[reads.weight]
    for key, value in metrics.items():
        if not all(_is_finite(number) for number in (value if isinstance(value, list) else [value])):
            raise BadReply(Reason.METRICS, f"metric {key!r:.40} is not finite")
    _check_inputs(metrics, reads)
    return examples, metrics


def _check_size(record: Any) -> None:
    """Before anything is copied: a reply may hold millions of names or numbers."""
    if len(record) > MAX_METRICS:
        raise BadReply(Reason.METRICS, f"needs at most {MAX_METRICS} metrics, got {len(record)}")
    for key in record:
        if not isinstance(key, str) or len(key) > MAX_NAME_LENGTH or not key.isprintable():
            raise BadReply(
                Reason.METRICS,
                f"names of metrics need at most {MAX_NAME_LENGTH} printable characters, got {str(key)[:40]!r}",
            )
    n_numbers = sum(len(value) for value in record.values() if isinstance(value, list))
    if n_numbers > MAX_NUMBERS:
        raise BadReply(Reason.METRICS, f"needs at most {MAX_NUMBERS} numbers in lists, got {n_numbers}")


def _read_examples(metrics: Mapping[str, Any], key: str) -> float:
    if key not in metrics:
        raise BadReply(Reason.EXAMPLES, f"needs the metric {key!r}")
    claim = metrics[key]
    if isinstance(claim, bool | list) or not _is_finite(claim) or not claim > 0:
        raise BadReply(Reason.EXAMPLES, f"{key} needs a finite positive number, got {claim!r:.40}")
    return float(claim)


def _check_inputs(metrics: Mapping[str, Any], reads: StrategyMetrics) -> None:
    """A loss of −1 would make the model NaN, and one of 0 would stop it for good."""
    if reads.loss is not None:
        loss = metrics.get(reads.loss)
        if loss is None or isinstance(loss, list) or not loss > 0:
            raise BadReply(
                Reason.METRICS, f"the strategy needs a positive number as metric {reads.loss!r}, got {loss!r:.40}"
            )
    if reads.bit is not None and metrics.get(reads.bit) not in (0, 1):
        raise BadReply(
            Reason.METRICS, f"the strategy needs 0 or 1 as metric {reads.bit!r}, got {metrics.get(reads.bit)!r:.40}"
        )


def find_wild_losses(metrics: Sequence[Mapping[str, Any]], key: str) -> dict[int, str]:
    """The replies, by position, whose loss would decide the round alone, and why. Fewer than three: none."""
    losses = [float(some[key]) for some in metrics]
    if len(losses) < 3:
        return {}
    median = statistics.median(losses)
    limits = f"the strategy needs a metric {key!r} within {MAX_LOSS_RATIO:g} times of the median, {median:.3g}"
    return {
        i: f"{limits}, got {loss:.3g}"
        for i, loss in enumerate(losses)
        if not median / MAX_LOSS_RATIO <= loss <= median * MAX_LOSS_RATIO
    }


def _is_finite(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    try:
        return math.isfinite(float(number))
    except OverflowError:
        return False
