"""Runs the rounds of a Flower federation, with records and a checkpoint after every round."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from .. import __version__
from ..catalog.registry import PRESETS, describe
from ..runs.records import RoundRecord, read_run
from ..runs.run_folder import RunFolder
from .arrays import get_specs, to_numpy
from .guarded_grid import GuardedGrid
from .progress import Progress, restore_progress, to_checkpoint, warn_about_unsaved
from .round_log import log_end, log_metrics, log_start
from .round_record import HELPER_FAILED, PREFIX

if TYPE_CHECKING:
    from .defended import Defended

log = logging.getLogger("flwr")

ARROW = "\t└──>"  # before the metrics of a phase, as in Flower's log
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class RoundSettings:
    """The arguments of `Strategy.start` that every round needs."""

    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: Evaluate | None

    @property
    def configs(self) -> dict[str, ConfigRecord]:
        return {"train": self.train_config, "evaluate": self.evaluate_config}


class AllRoundsSkipped(RuntimeError):
    """No round changed the model, so the run has not succeeded. The folder is complete and can be resumed."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"all {len(result.train_metrics_clientapp)} rounds were skipped; the log says why")
        self.result = result


def run_federation(
    defended: Defended, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, settings: RoundSettings, resume: bool
) -> Result:
    """Run all rounds, or those that the checkpoint does not include."""
    if resume and defended.checkpoint_dir is None:
        raise ValueError("resume needs Defended(…, checkpoint_dir=…)")
    start = time.monotonic()
    folder = None if defended.checkpoint_dir is None else RunFolder(defended.checkpoint_dir)
    with folder.lock() if folder else nullcontext():
        progress = _start_or_resume(defended, folder, initial_arrays, resume)
        guarded, first = GuardedGrid(grid, defended.deadline, defended.pull_limits), progress.n_rounds + 1
        log_start(type(defended).__name__, num_rounds, progress.arrays, settings.configs)
        defended.summary()
        defended.observers.started(_build_header(defended), read_run(folder.path).rounds if folder else ())
        if settings.evaluate_fn and first == 1:
            metrics = settings.evaluate_fn(0, initial_arrays)
            log_metrics("Initial global evaluation results", metrics)
            _set_metrics(progress.result.evaluate_metrics_serverapp, 0, metrics)
        for number in range(first, num_rounds + 1):
            log.info("")
            log.info("[ROUND %s/%s]", number, num_rounds)
            progress, seconds = _run_round(number, progress, defended, guarded, settings)
            record = defended.record and _complete_record(defended, defended.record, number, progress.result, seconds)
            if folder and record:
                folder.append(record)
                folder.save(to_checkpoint(progress, defended))
                if number == first:
                    warn_about_unsaved(defended)
            if record:
                defended.observers.recorded(record)
        if folder:
            folder.finish()
    log_end(progress.result, time.monotonic() - start)
    _check_not_all_skipped(progress.result)
    return progress.result


def _run_round(
    number: int, progress: Progress, defended: Defended, grid: GuardedGrid, settings: RoundSettings
) -> tuple[Progress, dict[str, float]]:
    """Train, aggregate and evaluate. Returns the new progress, and the seconds of both phases."""
    result, start = progress.result, time.monotonic()
    messages = defended.configure_train(number, progress.arrays, settings.train_config, grid)
    replies = grid.send_and_receive(messages, timeout=settings.timeout)
    arrays, metrics = defended.aggregate_train(number, replies, missing=grid.rejected)
    arrays = result.arrays = progress.arrays if arrays is None else arrays
    _set_metrics(result.train_metrics_clientapp, number, metrics)
    log_metrics(f"{ARROW} Aggregated MetricRecord", metrics)
    trained = time.monotonic()
    messages = defended.configure_evaluate(number, arrays, settings.evaluate_config, grid)
    replies = grid.send_and_receive(messages, timeout=settings.timeout)
    metrics = defended.aggregate_evaluate(number, replies, missing=grid.rejected)
    _set_metrics(result.evaluate_metrics_clientapp, number, metrics)
    if metrics is not None:
        log_metrics(f"{ARROW} Aggregated MetricRecord", metrics)
    if settings.evaluate_fn:
        metrics = settings.evaluate_fn(number, arrays)
        _set_metrics(result.evaluate_metrics_serverapp, number, metrics)
        log.info("Global evaluation")
        log_metrics(f"{ARROW} MetricRecord", metrics)
    return Progress(number, arrays, result), {"train": trained - start, "evaluate": time.monotonic() - trained}


def _start_or_resume(
    defended: Defended, folder: RunFolder | None, initial_arrays: ArrayRecord, resume: bool
) -> Progress:
    if folder is None:
        return Progress(0, initial_arrays, Result())
    if not folder.has_checkpoint:
        # One round may have been recorded before its checkpoint was written.
        folder.begin(_build_header(defended), may_discard=1)
        return Progress(0, initial_arrays, Result())
    if not resume:
        raise ValueError(
            f"{folder.path} holds a checkpoint: resume it with start(…, resume=True), or choose another folder"
        )
    checkpoint = folder.load()
    progress = restore_progress(checkpoint, defended, get_specs(to_numpy(initial_arrays)), folder.path)
    folder.warn_if_elsewhere(_build_header(defended))
    folder.rewind(checkpoint)
    log.info("resumed after round %d from %s", progress.n_rounds, folder.path)
    return progress


def _check_not_all_skipped(result: Result) -> None:
    """Rounds in which no node is asked to train (`fraction_train=0`) do not count."""
    rounds = [
        metrics
        for metrics in result.train_metrics_clientapp.values()
        if metrics.get(f"{PREFIX}-received")
        or metrics.get(HELPER_FAILED)
        or any(key.startswith(f"{PREFIX}-rejected") for key in metrics)
    ]
    if rounds and all(metrics.get(f"{PREFIX}-skipped") for metrics in rounds):
        raise AllRoundsSkipped(result)


def _set_metrics(history: dict[int, MetricRecord], number: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        history[number] = metrics


def _complete_record(
    defended: Defended, record: RoundRecord, number: int, result: Result, seconds: dict[str, float]
) -> RoundRecord:
    """Rounds count from 0, as in the simulator. The server's accuracy and loss come before those of the clients."""
    histories = (result.evaluate_metrics_serverapp, result.evaluate_metrics_clientapp)
    metrics = [history[number] for history in histories if number in history]
    names = tuple(defended.names.get(node) for node in record.clients)
    return replace(
        record, round=number - 1, names=names if any(names) else (), n_bytes=defended.n_bytes, seconds=seconds,
        accuracy=_find_metric(metrics, "accuracy"), loss=_find_metric(metrics, "loss"),
    )  # fmt: skip


def _find_metric(records: list[MetricRecord], word: str) -> float | None:
    for record in records:
        for key, value in record.items():
            if word in key and isinstance(value, int | float):
                return float(value)
    return None


def _build_header(defended: Defended) -> dict[str, Any]:
    name = type(defended.strategy).__name__
    parts = describe(defended.defense)
    if not defended.defense_aggregates:
        del parts["aggregator"]  # the strategy aggregates
    return {
        "experiment": {
            "name": "flower", "strategy": name, "defenses": [parts], "quorum": defended.quorum,
            "deadline": defended.deadline, "weigh_by_examples": defended.weigh_by_examples,
            "max_norm_ratio": defended.norm_guard.max_ratio,
        },
        "defense": _get_label(defended),
        "device": "Flower",
        "versions": {
            "cosdefense": __version__, "flwr": flwr.__version__, "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }  # fmt: skip


def _get_label(defended: Defended) -> str:
    """The name of the preset, if the defense is one; otherwise the names of its parts."""
    defense = defended.defense
    if defense.filters:
        for name, preset in PRESETS.items():
            if preset() == defense:
                return name
    secure = "secure " if defense.hides_updates else ""
    label = secure + " + ".join(type(part).__name__ for part in defense.filters) or "no filter"
    return label + (f" + {type(defense.aggregator).__name__}" if defended.defense_aggregates else "")
