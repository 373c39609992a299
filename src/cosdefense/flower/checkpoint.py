"""A federation's folder: `records.jsonl` and a checkpoint that is never ahead of it. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..checkpoint import DamagedCheckpoint, write_atomically
from ..memory import pack, unpack
from ..records import RoundRecord, complete_lines
from .arrays import own_arrays
from .memory import pack_strategy, restore_strategy

if TYPE_CHECKING:
    from .defended import Defended

HISTORIES = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


@dataclass(frozen=True)
class Progress:
    """Where a federation stands."""

    done: int  # rounds
    arrays: ArrayRecord  # the global model
    result: Result


class Folder:
    """One federation on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records, self._checkpoint = path / "records.jsonl", path / "checkpoint.safetensors"

    @property
    def has_checkpoint(self) -> bool:
        return self._checkpoint.exists()

    def begin(self, header: Mapping[str, Any]) -> None:
        """A new federation: the header, and nothing else."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._records, _line(header))

    def append(self, record: RoundRecord) -> None:
        with self._records.open("ab") as file:
            file.write(_line(record.to_json()))
            file.flush()
            os.fsync(file.fileno())  # before the checkpoint, which must not be ahead

    def save(self, progress: Progress, defended: Defended) -> None:
        """The model, and all that the next round depends on."""
        strategy, strategy_tensors = pack_strategy(defended.strategy)
        state, state_tensors = pack(defended.state)
        model = {name: torch.from_numpy(array) for name, array in own_arrays(progress.arrays).items()}
        tensors = {
            **{f"model.{name}": tensor for name, tensor in model.items()},
            **{f"strategy.{name}": tensor for name, tensor in strategy_tensors.items()},
            **{f"state.{name}": tensor.cpu().contiguous().clone() for name, tensor in state_tensors.items()},
        }
        told = {
            "done": progress.done, "names": list(model), "seed": defended.seed, "defense": repr(defended.defense),
            "strategy": strategy, "state": state, "digest": _digest(tensors),
            "result": {name: _plain(getattr(progress.result, name)) for name in HISTORIES},
        }  # fmt: skip
        write_atomically(self._checkpoint, save(tensors, {"told": json.dumps(told)}))

    def load(self, defended: Defended) -> Progress:
        """Put everything back into the strategy, and drop records of rounds that the checkpoint does not know."""
        try:
            with safe_open(self._checkpoint, framework="pt") as file:
                told = json.loads(file.metadata()["told"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise DamagedCheckpoint(f"{self._checkpoint} cannot be read ({error})") from error
        if _digest(tensors) != told["digest"]:
            raise DamagedCheckpoint(f"{self._checkpoint} does not hold what was written: its digest differs")
        if told["defense"] != repr(defended.defense):
            raise ValueError(f"{self.path} belongs to {told['defense']}, this is {defended.defense!r}")
        defended.seed = told["seed"]
        restore_strategy(defended.strategy, told["strategy"], _under(tensors, "strategy."))
        defended.state = unpack(told["state"], _under(tensors, "state."), defended.defense.init())
        arrays = ArrayRecord({name: Array(tensors[f"model.{name}"].numpy()) for name in told["names"]})
        histories = {
            name: {int(number): MetricRecord(metrics) for number, metrics in told["result"][name]} for name in HISTORIES
        }
        self._rewind(told["done"])
        return Progress(told["done"], arrays, Result(arrays=arrays, **histories))

    def _rewind(self, done: int) -> None:
        lines = complete_lines(self._records) if self._records.exists() else []
        if not lines or sum("round" in line for line in lines) < done:
            raise DamagedCheckpoint(f"{self._records} lacks rounds that {self._checkpoint.name} knows of")
        kept = [line for line in lines if line.get("round", -1) < done]
        write_atomically(self._records, b"".join(map(_line, kept)))


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _plain(history: Mapping[int, MetricRecord]) -> list[list[Any]]:
    return [[number, dict(record)] for number, record in history.items()]


def _digest(tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"
