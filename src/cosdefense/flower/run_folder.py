"""A federation's folder: `records.jsonl` and a checkpoint that is never ahead of it. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import logging
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

from ..core import pack, unpack
from ..runs.checkpoint import DamagedCheckpoint, write_atomically
from ..runs.metrics import summarize
from ..runs.records import RoundRecord, complete_lines, read_run
from .arrays import Form, forms_of, own_arrays
from .strategy_state import kinds_of, pack_strategy, restore_strategy

if TYPE_CHECKING:
    from .defended import Defended

log = logging.getLogger("flwr")

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
        self._warned = False

    @property
    def has_checkpoint(self) -> bool:
        return self._checkpoint.exists()

    def begin(self, header: Mapping[str, Any]) -> None:
        """A new federation: the header, and nothing else."""
        rounds = [line for line in _lines(self._records) if "round" in line]
        if len(rounds) > 1:  # one round: killed between its record and its checkpoint, before anything else was done
            raise ValueError(
                f"{self._records} holds {len(rounds)} rounds, but {self._checkpoint.name} is missing: nothing is "
                "overwritten; put it back, or choose another folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._records, _line(header))

    def append(self, record: RoundRecord) -> None:
        self._append(record.to_json())

    def finish(self) -> None:
        """The last line: what came out. More rounds, if they are asked for later, take its place."""
        self._append({"summary": summarize(read_run(self._records).rounds)})

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._records.open("ab") as file:
            file.write(_line(line))
            file.flush()
            os.fsync(file.fileno())  # before the checkpoint, which must not be ahead

    def save(self, progress: Progress, defended: Defended) -> None:
        """The model, and all that the next round depends on."""
        strategy = pack_strategy(defended.strategy)
        if strategy.left_out and not self._warned:
            log.warning("not in the checkpoint, so a resumed run starts with it anew: %s", "; ".join(strategy.left_out))
            self._warned = True
        state, state_tensors = pack(defended.state)
        model = {name: torch.from_numpy(array) for name, array in own_arrays(progress.arrays).items()}
        tensors = {
            **{f"model.{name}": tensor for name, tensor in model.items()},
            **{f"strategy.{name}": tensor for name, tensor in strategy.tensors.items()},
            **{f"state.{name}": tensor.cpu().contiguous().clone() for name, tensor in state_tensors.items()},
        }
        told = json.dumps({
            "done": progress.done, "names": list(model), "seed": defended.seed, "belongs": _belonging(defended),
            "strategy": strategy.attributes, "state": state,
            "result": {name: _plain(getattr(progress.result, name)) for name in HISTORIES},
        })  # fmt: skip
        write_atomically(self._checkpoint, save(tensors, {"told": told, "digest": _digest(told, tensors)}))

    def load(self, defended: Defended, model: Mapping[str, Form]) -> Progress:
        """Put everything back into the strategy, and drop records of rounds that the checkpoint does not know.

        Whatever does not fit is found before anything is changed.
        """
        told, tensors = self._read()
        for what, needed in _belonging(defended).items():
            found = told["belongs"].get(what)
            if found != needed:
                raise ValueError(f"{self.path} belongs to another {what}: it holds {found}, this is {needed}")
        arrays = ArrayRecord({name: Array(tensors[f"model.{name}"].numpy()) for name in told["names"]})
        _same_model(self.path, forms_of(own_arrays(arrays)), model)
        kept = self._rounds_until(told["done"])
        defended.seed = told["seed"]
        restore_strategy(defended.strategy, told["strategy"], _under(tensors, "strategy."))
        defended.state = unpack(told["state"], _under(tensors, "state."), defended.defense.init())
        histories = {
            name: {int(number): MetricRecord(metrics) for number, metrics in told["result"][name]} for name in HISTORIES
        }
        write_atomically(self._records, b"".join(map(_line, kept)))
        return Progress(told["done"], arrays, Result(arrays=arrays, **histories))

    def _read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        try:
            with safe_open(self._checkpoint, framework="pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text, digest = metadata["told"], metadata["digest"]
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise DamagedCheckpoint(f"{self._checkpoint} cannot be read: {error}") from error
        if _digest(text, tensors) != digest:
            raise DamagedCheckpoint(f"{self._checkpoint} does not hold what was written: its digest differs")
        return json.loads(text), tensors

    def _rounds_until(self, done: int) -> list[dict[str, Any]]:
        """The header and the records of the rounds that are done."""
        lines = _lines(self._records)
        kept = [line for line in lines[1:] if line.get("round", done) < done]
        if [line["round"] for line in kept] != list(range(done)):
            raise DamagedCheckpoint(
                f"{self._records} needs rounds 0 to {done - 1}, which {self._checkpoint.name} knows of, "
                f"got {len(kept)} of them"
            )
        return [lines[0], *kept]


def _belonging(defended: Defended) -> dict[str, str]:
    """What a checkpoint can be resumed with."""
    return {
        "defense": repr(defended.defense),
        "strategy": kinds_of(defended.strategy),
        "aggregation": "by the defense" if defended.aggregates else "by the strategy",
    }


def _same_model(path: Path, found: Mapping[str, Form], needed: Mapping[str, Form]) -> None:
    if found == needed and list(found) == list(needed):
        return
    for name in [*needed, *found]:
        if found.get(name) != needed.get(name):
            raise ValueError(
                f"{path} holds another model: of {name!r} it has {found.get(name)}, this has {needed.get(name)}"
            )
    raise ValueError(f"{path} holds another model: its arrays are in the order {list(found)}, needed {list(needed)}")


def _lines(path: Path) -> list[dict[str, Any]]:
    return complete_lines(path) if path.exists() else []


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _plain(history: Mapping[int, MetricRecord]) -> list[list[Any]]:
    return [[number, dict(record)] for number, record in history.items()]


def _digest(told: str, tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256(told.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        hashed.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"
