"""The rounds of a real federation, recorded and checkpointed: a killed server goes on to the same bits."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from .. import __version__
from ..catalog.registry import PRESETS, describe
from ..runs.records import RoundRecord
from .arrays import forms_of, own_arrays
from .guarded_grid import GuardedGrid
from .run_folder import Folder, Progress

if TYPE_CHECKING:
    from .defended import Defended

log = logging.getLogger("flwr")

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


def federate(
    defended: Defended,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    timeout: float,
    train_config: ConfigRecord,
    evaluate_config: ConfigRecord,
    evaluate_fn: Evaluate | None,
    resume: bool,
) -> Result:
    """All rounds, or those that are left."""
    folder = None if defended.checkpoint_dir is None else Folder(defended.checkpoint_dir)
    now = _begun(defended, folder, initial_arrays, resume)
    result, arrays, guarded = now.result, now.arrays, GuardedGrid(grid, defended.deadline)
    defended.summary()
    if evaluate_fn and now.done == 0:
        _put(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, arrays))
    for number in range(now.done + 1, num_rounds + 1):
        started = time.monotonic()
        log.info("[ROUND %s/%s]", number, num_rounds)
        messages = defended.configure_train(number, arrays, train_config, guarded)
        replies = guarded.send_and_receive(messages, timeout=timeout)
        trained, metrics = defended.aggregate_train(number, replies, lost=guarded.refused)
        received = time.monotonic()
        arrays = result.arrays = arrays if trained is None else trained
        _put(result.train_metrics_clientapp, number, metrics)
        messages = defended.configure_evaluate(number, arrays, evaluate_config, guarded)
        replies = guarded.send_and_receive(messages, timeout=timeout)
        _put(
            result.evaluate_metrics_clientapp,
            number,
            defended.aggregate_evaluate(number, replies, lost=guarded.refused),
        )
        if evaluate_fn:
            _put(result.evaluate_metrics_serverapp, number, evaluate_fn(number, arrays))
        if folder and defended.record:
            seconds = {"train": received - started, "evaluate": time.monotonic() - received}
            folder.append(_record(defended.record, number, result, seconds))
            folder.save(Progress(number, arrays, result), defended)
    if folder:
        folder.finish()
    log.info("finished after round %s", num_rounds)
    return result


def _begun(defended: Defended, folder: Folder | None, initial_arrays: ArrayRecord, resume: bool) -> Progress:
    """Where to start: at the beginning, or where the checkpoint says."""
    if resume and folder is None:
        raise ValueError("resume needs Defended(…, checkpoint_dir=…)")
    if folder is None:
        return Progress(0, initial_arrays, Result())
    if folder.has_checkpoint and not resume:
        raise ValueError(
            f"{folder.path} holds a checkpoint already: go on with start(…, resume=True), or choose another folder"
        )
    if folder.has_checkpoint:
        now = folder.load(defended, forms_of(own_arrays(initial_arrays)))
        log.info("resumed after round %d from %s", now.done, folder.path)
        return now
    folder.begin(_header(defended))
    return Progress(0, initial_arrays, Result())


def _put(known: dict[int, MetricRecord], number: int, record: MetricRecord | None) -> None:
    if record is not None:
        known[number] = record


def _record(record: RoundRecord, number: int, result: Result, seconds: dict[str, float]) -> RoundRecord:
    """Rounds count from 0 as in the simulator; accuracy is the server's own if it has one, else the clients'."""
    sources = (result.evaluate_metrics_serverapp, result.evaluate_metrics_clientapp)
    found = [source[number] for source in sources if number in source]
    return replace(
        record, round=number - 1, accuracy=_metric(found, "accuracy"), loss=_metric(found, "loss"), seconds=seconds
    )


def _metric(records: list[MetricRecord], word: str) -> float | None:
    for record in records:
        for key, value in record.items():
            if word in key and isinstance(value, int | float):
                return float(value)
    return None


def _header(defended: Defended) -> dict[str, Any]:
    name = type(defended.strategy).__name__
    parts = describe(defended.defense)
    if not defended.aggregates:
        del parts["aggregator"]  # the strategy does that
    return {
        "experiment": {
            "name": "flower", "strategy": name, "defenses": [parts], "quorum": defended.quorum,
            "deadline": defended.deadline, "weigh_by_examples": defended.weigh_by_examples,
        },
        "defense": _label(defended),
        "device": "Flower",
        "versions": {
            "cosdefense": __version__, "flwr": flwr.__version__, "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }  # fmt: skip


def _label(defended: Defended) -> str:
    """A defense with a name of its own goes by it."""
    own = defended.defense
    if own.filters:
        for name, preset in PRESETS.items():
            if preset() == own:
                return name
    label = " + ".join(type(part).__name__ for part in own.filters) or "guard alone"
    return label + (f" + {type(own.aggregator).__name__}" if defended.aggregates else "")
