"""Checkpoints: named tensors and plain JSON values in one safetensors file. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
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
from .files import write_atomically

MAX_ROUNDS = 10**7  # more were never run: such a number is a damaged one
PARAMS, STATE = "params", "state."  # how the simulator names its tensors


class DamagedCheckpoint(RuntimeError):
    """A checkpoint that cannot be read back."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that the next round depends on."""

    next_round: int  # rounds count from 0, so this many are done
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    records: str | None = None  # the digest of the last record that it includes


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint with a digest over everything in it."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    values = json.dumps(
        {"next_round": checkpoint.next_round, "metadata": checkpoint.metadata, "records": checkpoint.records}
    )
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
    values = _check_values(text, path)
    moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    return Checkpoint(values["next_round"], moved, values["metadata"], values.get("records"))


def checkpoint_of(snapshot: Snapshot) -> Checkpoint:
    """The state of a simulation as named tensors and plain values."""
    states, tensors = pack((snapshot.defense_state, snapshot.attack_state, snapshot.client_memories))
    named = {f"{STATE}{name}": tensor for name, tensor in tensors.items()}
    return Checkpoint(snapshot.next_round, {PARAMS: snapshot.params, **named}, {"states": states})


def snapshot_of(checkpoint: Checkpoint, like: tuple[Any, Any, Any]) -> Snapshot:
    """The state of a simulation again. `like`: what the defense and the attack start from, and clients with hooks."""
    try:
        named = {name.removeprefix(STATE): tensor for name, tensor in checkpoint.tensors.items()}
        states = unpack(checkpoint.metadata["states"], named, like)
        defense_state, attack_state, memories = states
        return Snapshot(checkpoint.next_round, checkpoint.tensors[PARAMS], defense_state, attack_state, memories)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise DamagedCheckpoint(f"the checkpoint does not hold the state of this simulation: {error}") from error


def _check_values(text: str, path: Path) -> dict[str, Any]:
    """A digest shows that the file is what somebody wrote, not that this program wrote it."""
    try:
        values = json.loads(text)
        next_round, metadata, records = values["next_round"], values["metadata"], values.get("records")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} holds no readable values ({error!r}); {_advice(path)}") from error
    if type(next_round) is not int or not 0 <= next_round <= MAX_ROUNDS:
        needed = f"a whole number from 0 to {MAX_ROUNDS:,}"
        raise DamagedCheckpoint(f"{path}: next_round must be {needed}, got {next_round!r:.100}; {_advice(path)}")
    for name, value, kind in (("metadata", metadata, dict), ("records", records, str | None)):
        if not isinstance(value, kind):
            raise DamagedCheckpoint(f"{path}: {name} cannot be of type {type(value).__name__}; {_advice(path)}")
    return dict(values)


def _advice(path: Path) -> str:
    return f"restore the file, or delete {path.parent} to start this run again"


def _digest(values: str, tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256(values.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        hashed.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
