"""One run on a node of a Ray cluster: it works in a temporary folder, and what it writes goes home in parcels."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ... import __version__
from ...catalog.options import ConfigError
from ...data.datasets import Dataset
from ..experiment import Experiment
from ..prepare import choose_device
from ..single_run import Play, run
from .transport import Parcel

RECORDS = "records.jsonl"
WHOLE = ("experiment.toml", "checkpoint.safetensors")  # replaced as a whole, so they are sent as a whole


@dataclass(frozen=True)
class RunRequest:
    """A run, and where it has come to."""

    cell: Experiment
    play: Play
    device: str
    notes: Mapping[str, Any]  # for the header of the records
    checkpoint_seconds: float
    parcel_seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict)  # what the run's folder holds so far
    version: str = __version__  # of who gives the order


def work(order: RunRequest, dataset: Dataset, mailbox: Any, sender: int) -> None:
    """The task that Ray runs."""
    ray = import_module("ray")
    run_order(order, dataset, lambda parcel: bool(ray.get(mailbox.post.remote(sender, parcel))))


def run_order(order: RunRequest, dataset: Dataset, post: Callable[[Parcel], bool]) -> None:
    """Go on until the run is finished or `post` says stop. Whatever ends it, all that was written is posted."""
    if order.version != __version__:
        raise ConfigError(f"this node of the cluster has cosdefense {__version__}, the command is of {order.version}")
    torch.set_num_threads(1)  # a run asks Ray for one core
    with TemporaryDirectory(prefix="cosdefense-") as name, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        folder = Path(name)
        for file, content in order.files.items():
            (folder / file).write_bytes(content)
        parcels = Parcels(folder, caught)
        rounds = run(
            order.cell, folder, dataset, choose_device(order.device), play=order.play, notes=order.notes,
            checkpoint_seconds=order.checkpoint_seconds,
        )  # fmt: skip
        try:
            with closing(rounds):  # closed, a run saves where it is
                posted = -math.inf  # the first round is told at once
                for _ in rounds:
                    if time.monotonic() - posted >= order.parcel_seconds:
                        if post(parcels.pack()):
                            break
                        posted = time.monotonic()
        finally:
            post(parcels.pack())


class Parcels:
    """Packs what is new in a run's folder."""

    def __init__(self, folder: Path, caught: list[warnings.WarningMessage]) -> None:
        self._folder, self._caught = folder, caught
        self._sent, self._said = 0, 0  # bytes of the records, warnings
        self._stamps = {name: _stamp(folder / name) for name in WHOLE}  # what came with the order is known at home

    def pack(self) -> Parcel:
        """Between two rounds: then the records are not behind the checkpoint."""
        stamps = {name: _stamp(self._folder / name) for name in WHOLE}
        files = {name: (self._folder / name).read_bytes() for name in WHOLE if stamps[name] != self._stamps[name]}
        records = self._folder / RECORDS
        lines = records.read_bytes()[self._sent :] if records.exists() else b""
        notes = tuple(str(warning.message) for warning in self._caught[self._said :])
        parcel = Parcel(self._sent, lines, files, notes)
        self._sent, self._said, self._stamps = self._sent + len(lines), len(self._caught), stamps
        return parcel


def _stamp(path: Path) -> tuple[int, int] | None:
    """Another one after each replacement."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino
