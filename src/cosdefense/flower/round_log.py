"""What the log says about a run: as much as Flower's own `Strategy.start`, and every rejection."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Result

from ..runs.records import RoundRecord
from ..runs.safe_text import printable
from .arrays import count_bytes
from .node_names import NodeNames
from .reasons import Reason, Rejection

log = logging.getLogger("flwr")

MAX_LINE = 2000  # characters of metrics; the names of metrics come from clients
SHORTENED = reprlib.Repr()
SHORTENED.maxdict, SHORTENED.maxlist, SHORTENED.maxstring = 50, 10, 100


def log_start(strategy: str, num_rounds: int, arrays: ArrayRecord, configs: Mapping[str, ConfigRecord]) -> None:
    log.info("Starting %s strategy:", strategy)
    log.info("\t├── Number of rounds: %d", num_rounds)
    log.info("\t├── ArrayRecord (%.2f MB)", count_bytes(arrays) / 2**20)
    for kind, config in configs.items():
        log.info("\t├── ConfigRecord (%s): %s", kind, _show_config(config) if config else "(empty!)")


def log_metrics(what: str, metrics: Any) -> None:
    log.info("%s: %s", what, _show(metrics))


def log_checked(step: str, n_valid: int, rejected: list[Rejection], names: NodeNames) -> None:
    """One line about all replies, and one for each that was rejected before the defense."""
    if n_valid or rejected:
        log.info("%s: %d of %d replies are valid", step, n_valid, n_valid + len(rejected))
    for rejection in rejected:
        log_rejection(rejection, names)


def log_rejection(rejection: Rejection, names: NodeNames) -> None:
    node, reason, detail = rejection
    log.warning("reply of %s rejected (%s): %s", names.label(node), reason, printable(detail))


def log_verdict(record: RoundRecord, names: NodeNames) -> None:
    """How many replies were accepted, and a line with scores for each that the defense rejected."""
    log.info("aggregate_train: %d replies were accepted", sum(weight != 0 for weight in record.weights))
    for place, (node, reason) in enumerate(zip(record.clients, record.reasons, strict=True)):
        if reason == Reason.DEFENSE:
            log.warning("reply of %s rejected (%s): %s", names.label(node), reason, _show_scores(record, place))


def log_unusual_buffers(unusual: Mapping[int, float], names: NodeNames) -> None:
    for node, ratio in unusual.items():
        log.warning(
            "buffers of %s are %.3g times as far from the median of all replies as usual; the model gets the median",
            names.label(node),
            ratio,
        )


def log_end(result: Result, seconds: float) -> None:
    log.info("Strategy execution finished in %.2fs", seconds)
    log.info("Final results:")
    log.info("\tGlobal Arrays:")
    log.info("\t\tArrayRecord (%.3f MB)", count_bytes(result.arrays) / 2**20)
    histories = {
        "Aggregated ClientApp-side Train Metrics": result.train_metrics_clientapp,
        "Aggregated ClientApp-side Evaluate Metrics": result.evaluate_metrics_clientapp,
        "ServerApp-side Evaluate Metrics": result.evaluate_metrics_serverapp,
    }
    for name, history in histories.items():
        log.info("\t%s:", name)
        for number, metrics in history.items():
            log.info("\t\t%d: %s", number, _show(metrics))


def _show_scores(record: RoundRecord, place: int) -> str:
    scores = [f"{name} {values[place]:.4g}" for name, values in record.scores.items() if values[place] is not None]
    return ("scores: " + ", ".join(scores)) if scores else "no score"


def _show(metrics: Mapping[str, Any] | None) -> str:
    """In short: Flower's own text of a result with long lists takes minutes."""
    return printable(SHORTENED.repr(None if metrics is None else dict(metrics)), MAX_LINE)


def _show_config(config: ConfigRecord) -> str:
    return printable({key: "<bytes>" if isinstance(value, bytes) else value for key, value in config.items()}, MAX_LINE)
