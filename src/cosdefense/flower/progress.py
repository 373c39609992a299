"""The progress of a federation (model, state of defense and strategy, metrics) as a checkpoint, and back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from ..core import pack, unpack
from ..runs.checkpoint import Checkpoint, DamagedCheckpoint
from .arrays import ArraySpec, NDArray, get_specs, to_numpy
from .metric_histories import HistoryError, decode_histories, encode_histories
from .norm_guard import read_median
from .reasons import quote_error
from .strategy_state import describe_strategy, pack_strategy, restore_strategy

if TYPE_CHECKING:
    from .defended import Defended

log = logging.getLogger("flwr")

MODEL, STRATEGY, STATE = "model.", "strategy.", "state."  # prefixes of tensor names


@dataclass(frozen=True)
class Progress:
    """A federation after some rounds."""

    n_rounds: int
    arrays: ArrayRecord  # the global model
    result: Result


def to_checkpoint(progress: Progress, defended: Defended) -> Checkpoint:
    """The model, and everything else that the next round depends on."""
    strategy = pack_strategy(defended.strategy, defended.constructed)
    state, state_tensors = pack(defended.state)
    model = {name: torch.from_numpy(array) for name, array in to_numpy(progress.arrays).items()}
    tensors = {
        **{f"{MODEL}{name}": tensor for name, tensor in model.items()},
        **{f"{STRATEGY}{name}": tensor for name, tensor in strategy.tensors.items()},
        **{f"{STATE}{name}": tensor for name, tensor in state_tensors.items()},
    }
    metadata = {
        "array_names": list(model), "seed": defended.seed, "settings": _get_settings(defended),
        "strategy": strategy.attributes, "constructed": defended.constructed, "state": state,
        "median_norm": defended.norm_guard.median, "metrics": encode_histories(progress.result),
    }  # fmt: skip
    return Checkpoint(progress.n_rounds, tensors, metadata)


def warn_about_unsaved(defended: Defended) -> None:
    """Name the attributes of the strategy that no checkpoint can hold."""
    if unsaved := pack_strategy(defended.strategy, defended.constructed).unsaved:
        log.warning("not in the checkpoint, a resumed run starts without its state: %s", "; ".join(unsaved))


def restore_progress(
    checkpoint: Checkpoint, defended: Defended, specs: Mapping[str, ArraySpec], path: Path
) -> Progress:
    """Restore the state of the defense and the strategy. Raises an error, before any change, if something is wrong.

    The settings that `Defended` and the strategy were constructed with stay. Where they differ from those of the run
    that is resumed, a warning says so.
    """
    try:
        saved, tensors = checkpoint.metadata, checkpoint.tensors
        _check_settings(saved["settings"], defended, path)
        arrays = ArrayRecord({name: Array(tensors[f"{MODEL}{name}"].numpy()) for name in saved["array_names"]})
        histories = decode_histories(saved["metrics"], checkpoint.next_round)
        state = unpack(saved["state"], _select(tensors, STATE), defended.defense.init())
        seed, median_norm = int(saved["seed"]), read_median(saved["median_norm"])
        _check_model(to_numpy(arrays), specs, path)
        changes = restore_strategy(
            defended.strategy, saved["strategy"], _select(tensors, STRATEGY), defended.constructed, saved["constructed"]
        )
    except (KeyError, TypeError, AttributeError, OverflowError, HistoryError) as error:
        raise DamagedCheckpoint(f"{path} does not hold the state of a federation: {quote_error(error)}") from error
    defended.state, defended.norm_guard.median = state, median_norm
    if not defended.has_own_seed:
        defended.seed = seed
    elif defended.seed != seed:
        changes.append("the seed, so other nodes are sampled")
    for change in changes:
        log.warning("another setting than in the run that is resumed: %s", change)
    return Progress(checkpoint.next_round, arrays, Result(arrays=arrays, **histories))


def _get_settings(defended: Defended) -> dict[str, str]:
    """The settings that a resumed run must share with the run that wrote the checkpoint."""
    return {
        "defense": repr(defended.defense),
        "strategy": describe_strategy(defended.strategy),
        "aggregation": "by the defense" if defended.defense_aggregates else "by the strategy",
    }


def _check_settings(saved: Mapping[str, str], defended: Defended, path: Path) -> None:
    for setting, current in _get_settings(defended).items():
        if saved.get(setting) != current:
            raise ValueError(f"{path} was written with another {setting}: {saved.get(setting)}, this is {current}")


def _check_model(arrays: Mapping[str, NDArray], current: Mapping[str, ArraySpec], path: Path) -> None:
    saved = get_specs(arrays)
    for name in [*current, *saved]:
        if saved.get(name) != current.get(name):
            raise ValueError(
                f"{path} holds another model: its {name!r} is {saved.get(name)}, this model has {current.get(name)}"
            )
    if list(saved) != list(current):
        raise ValueError(f"{path} holds another model: its arrays are in the order {list(saved)}, not {list(current)}")
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            raise DamagedCheckpoint(f"{path} holds a model whose {name!r} is not finite: it cannot be trained further")


def _select(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
