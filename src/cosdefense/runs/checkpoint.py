"""Checkpoints: named tensors and plain JSON values in one safetensors file. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..core import pack, unpack
from ..simulation.loop import Snapshot

PARAMS, STATE = "params", "state."  # how the simulator names its tensors


class DamagedCheckpoint(RuntimeError):
    """A checkpoint that cannot be read back, or that does not fit the records beside it."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that the next round depends on."""

    next_round: int  # rounds count from 0, so this many are done
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole. Readers see the old file or the new one, even after a power cut.

    For one writer at a time.
    """
    partial = path.with_name(f".{path.name}.partial")  # always the same name: a crash leaves at most one
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself
    finally:
        os.close(folder)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint with a digest over everything in it."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    values = json.dumps({"next_round": checkpoint.next_round, "metadata": checkpoint.metadata})
    write_atomically(path, save(tensors, {"values": values, "digest": _digest(values, tensors)}))


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint and verify its digest."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text, digest = header["values"], header["digest"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({error}); {_advice(path)}") from error
    if _digest(text, tensors) != digest:
        raise DamagedCheckpoint(f"{path} does not hold what was written (its digest differs); {_advice(path)}")
    values = json.loads(text)
    if type(values["next_round"]) is not int or values["next_round"] < 0:
        raise DamagedCheckpoint(f"{path} needs a number of rounds, got {values['next_round']!r:.40}; {_advice(path)}")
    moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    return Checkpoint(values["next_round"], moved, values["metadata"])


def checkpoint_of(snapshot: Snapshot) -> Checkpoint:
    """The state of a simulation as named tensors and plain values."""
    states, tensors = pack((snapshot.defense_state, snapshot.attack_state))
    named = {f"{STATE}{name}": tensor for name, tensor in tensors.items()}
    return Checkpoint(snapshot.next_round, {PARAMS: snapshot.params, **named}, {"states": states})


def snapshot_of(checkpoint: Checkpoint, like: tuple[Any, Any]) -> Snapshot:
    """The state of a simulation again; `like` is what the defense's and the attack's `init()` return."""
    try:
        named = {name.removeprefix(STATE): tensor for name, tensor in checkpoint.tensors.items()}
        defense_state, attack_state = unpack(checkpoint.metadata["states"], named, like)
        return Snapshot(checkpoint.next_round, checkpoint.tensors[PARAMS], defense_state, attack_state)
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedCheckpoint(f"the checkpoint does not hold the state of this simulation: {error}") from error


def _advice(path: Path) -> str:
    return f"restore the file, or delete {path.parent} to start this run again"


def _digest(values: str, tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256(values.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        hashed.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
