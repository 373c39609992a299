"""The metrics of all rounds as JSON values, bounded in size, and back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

log = logging.getLogger("flwr")

HISTORIES = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
MAX_NUMBERS = 1_000_000  # about 20 MB of JSON; a checkpoint with more than 100 MB of it cannot be read back


class HistoryError(ValueError):
    """Metrics in a checkpoint that no run has written."""


def encode_histories(result: Result) -> dict[str, list[list[Any]]]:
    """By history: round and metrics. If they are too many, those of the first rounds are left out."""
    histories: dict[str, dict[int, MetricRecord]] = {name: getattr(result, name) for name in HISTORIES}
    n_left, kept = MAX_NUMBERS, {}
    for number in sorted({number for history in histories.values() for number in history}, reverse=True):
        n_left -= sum(count_numbers(history[number]) for history in histories.values() if number in history)
        if n_left < 0:
            log.warning("the checkpoint holds the metrics of the rounds after %d: those before are too many", number)
            break
        kept[number] = True
    return {
        name: [[number, dict(record)] for number, record in history.items() if number in kept]
        for name, history in histories.items()
    }


def decode_histories(encoded: Mapping[str, Any], n_rounds: int) -> dict[str, dict[int, MetricRecord]]:
    """Raises `HistoryError` if they are not those of a run of so many rounds, or too many."""
    n_left, histories = MAX_NUMBERS, {}
    for name in HISTORIES:
        histories[name] = history = dict[int, MetricRecord]()
        for entry in encoded[name]:
            number, metrics = _read_entry(entry, name)
            if type(number) is not int or not 0 <= number <= n_rounds or number in history:
                raise HistoryError(f"{name} holds round {number!r:.20}, after {n_rounds} rounds")
            n_left -= count_numbers(metrics)
            if n_left < 0:
                raise HistoryError(f"the metrics are more than {MAX_NUMBERS} numbers")
            history[number] = metrics
    return histories


def _read_entry(entry: Any, name: str) -> tuple[Any, MetricRecord]:
    try:
        number, metrics = entry
        return number, MetricRecord(metrics)
    except (ValueError, TypeError, AttributeError) as error:
        raise HistoryError(f"{name} holds {entry!r:.80}, not a round and its metrics") from error


def count_numbers(metrics: Mapping[str, Any]) -> int:
    """Including their names, a number for every eight characters."""
    return sum(1 + len(key) // 8 + (len(value) if isinstance(value, list) else 1) for key, value in metrics.items())
