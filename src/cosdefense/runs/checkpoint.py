"""A run's state on disk: one safetensors file, replaced as a whole or not at all. Nothing is pickled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..core import pack, unpack
from ..simulation.loop import Snapshot


class DamagedCheckpoint(RuntimeError):
    """A checkpoint that cannot be read back."""


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never a part; after a power cut too. For one writer at a time."""
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


def save_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write what the next round depends on."""
    states, tensors = pack((snapshot.defense_state, snapshot.attack_state))
    named = {f"state.{key}": tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    metadata = {"next_round": str(snapshot.next_round), "states": json.dumps(states)}
    write_atomically(path, save({"params": snapshot.params.detach().cpu(), **named}, metadata))


def load_snapshot(path: Path, like: tuple[Any, Any], device: torch.device) -> Snapshot:
    """Read it back; `like` is what the defense's and the attack's `init()` return."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata()
            params = file.get_tensor("params")
            tensors = {key.removeprefix("state."): file.get_tensor(key) for key in file.keys() if key != "params"}  # noqa: SIM118
            defense_state, attack_state = unpack(json.loads(metadata["states"]), tensors, like)
            return Snapshot(int(metadata["next_round"]), params, defense_state, attack_state)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DamagedCheckpoint(
            f"{path} cannot be read ({error}); delete its folder to start this run again"
        ) from error
