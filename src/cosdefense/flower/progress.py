"""The progress of a federation (model, state of defense and strategy, metrics) as a checkpoint, and back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from ..core import pack, unpack
from ..runs.checkpoint import Checkpoint
from .arrays import ArraySpec, get_specs, to_numpy
from .strategy_state import describe_strategy, pack_strategy, restore_strategy

if TYPE_CHECKING:
    from .defended import Defended

log = logging.getLogger("flwr")

METRIC_HISTORIES = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
MODEL, STRATEGY, STATE = "model.", "strategy.", "state."  # prefixes of tensor names


@dataclass(frozen=True)
class Progress:
    """A federation after some rounds."""

    n_rounds: int
    arrays: ArrayRecord  # the global model
    result: Result


def to_checkpoint(progress: Progress, defended: Defended) -> Checkpoint:
    """The model, and everything else that the next round depends on."""
    strategy = pack_strategy(defended.strategy)
    state, state_tensors = pack(defended.state)
    model = {name: torch.from_numpy(array) for name, array in to_numpy(progress.arrays).items()}
    tensors = {
        **{f"{MODEL}{name}": tensor for name, tensor in model.items()},
        **{f"{STRATEGY}{name}": tensor for name, tensor in strategy.tensors.items()},
        **{f"{STATE}{name}": tensor for name, tensor in state_tensors.items()},
    }
    metadata = {
        "array_names": list(model), "seed": defended.seed, "settings": _get_settings(defended),
        "strategy": strategy.attributes, "state": state,
        "metrics": {name: _encode_history(getattr(progress.result, name)) for name in METRIC_HISTORIES},
    }  # fmt: skip
    return Checkpoint(progress.n_rounds, tensors, metadata)


def warn_about_unsaved(defended: Defended) -> None:
    """Name the attributes of the strategy that no checkpoint can hold."""
    if unsaved := pack_strategy(defended.strategy).unsaved:
        log.warning("not in the checkpoint, a resumed run starts without its state: %s", "; ".join(unsaved))


def restore_progress(
    checkpoint: Checkpoint, defended: Defended, specs: Mapping[str, ArraySpec], path: Path
) -> Progress:
    """Restore the state of the defense and the strategy. Raises ValueError, before any change, if something differs."""
    saved, tensors = checkpoint.metadata, checkpoint.tensors
    for setting, current in _get_settings(defended).items():
        if saved["settings"].get(setting) != current:
            raise ValueError(
                f"{path} was written with another {setting}: {saved['settings'].get(setting)}, this is {current}"
            )
    arrays = ArrayRecord({name: Array(tensors[f"{MODEL}{name}"].numpy()) for name in saved["array_names"]})
    _check_model(get_specs(to_numpy(arrays)), specs, path)
    defended.seed = saved["seed"]
    restore_strategy(defended.strategy, saved["strategy"], _select(tensors, STRATEGY))
    defended.state = unpack(saved["state"], _select(tensors, STATE), defended.defense.init())
    histories = {name: _decode_history(saved["metrics"][name]) for name in METRIC_HISTORIES}
    return Progress(checkpoint.next_round, arrays, Result(arrays=arrays, **histories))


def _get_settings(defended: Defended) -> dict[str, str]:
    """The settings that a resumed run must share with the run that wrote the checkpoint."""
    return {
        "defense": repr(defended.defense),
        "strategy": describe_strategy(defended.strategy),
        "aggregation": "by the defense" if defended.defense_aggregates else "by the strategy",
    }


def _check_model(saved: Mapping[str, ArraySpec], current: Mapping[str, ArraySpec], path: Path) -> None:
    for name in [*current, *saved]:
        if saved.get(name) != current.get(name):
            raise ValueError(
                f"{path} holds another model: its {name!r} is {saved.get(name)}, this model has {current.get(name)}"
            )
    if list(saved) != list(current):
        raise ValueError(f"{path} holds another model: its arrays are in the order {list(saved)}, not {list(current)}")


def _select(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _encode_history(history: Mapping[int, MetricRecord]) -> list[list[Any]]:
    return [[number, dict(record)] for number, record in history.items()]


def _decode_history(encoded: list[list[Any]]) -> dict[int, MetricRecord]:
    return {int(number): MetricRecord(metrics) for number, metrics in encoded}
