"""One run on a node of a Ray cluster: it works in a temporary folder and uploads what it writes."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ... import __version__
from ...catalog.options import ConfigError
from ...data import Dataset
from ..device import choose_device
from ..experiment import Experiment
from ..memory import keep_freed_memory
from ..records import RoundRecord, list_record_files
from ..run_folder import CHECKPOINT
from ..single_run import run
from .transport import Upload

REPLACED_FILES = ("experiment.toml", CHECKPOINT)  # replaced as a whole, so they are sent as a whole

Post = Callable[[Upload], bool]  # sends an upload; returns whether to stop


@dataclass(frozen=True)
class RunRequest:
    """A run, and the files that its folder holds so far."""

    cell: Experiment
    device: str
    notes: Mapping[str, Any]  # for the header of the records
    checkpoint_seconds: float
    upload_seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict)
    package: str | None = None  # the folder in the working directory that holds the experiment's Python files
    version: str = __version__  # of the driver


class _Stopped(Exception):
    """The driver asked this run to stop."""


def make_remote_run(request: RunRequest, dataset: Dataset, inbox: Any, sender: int) -> None:
    """The task that Ray runs."""
    ray = import_module("ray")
    keep_freed_memory()
    torch.set_num_threads(1)  # a run asks Ray for one core
    serve(request, dataset, lambda upload: bool(ray.get(inbox.post.remote(sender, upload))))


def serve(request: RunRequest, dataset: Dataset, post: Post) -> None:
    """Run until the end, or until `post` says stop. Whatever ends the run, all that it wrote is posted."""
    if request.version != __version__:
        raise ConfigError(f"this node of the cluster has cosdefense {__version__}, the command is of {request.version}")
    cell = replace(request.cell, source=Path(request.package).resolve() if request.package else None)
    with TemporaryDirectory(prefix="cosdefense-") as name, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        folder = Path(name)
        for file, content in request.files.items():
            (folder / file).write_bytes(content)
        uploads = Uploads(folder, caught)
        try:
            run(
                cell, folder, dataset, choose_device(request.device),
                notes=request.notes, checkpoint_seconds=request.checkpoint_seconds,
                on_round=Uploader(uploads, post, request.upload_seconds),
            )  # fmt: skip
        except _Stopped:
            pass
        finally:
            post(uploads.pack())


class Uploader:
    """Posts after the first round, and then every few seconds."""

    def __init__(self, uploads: Uploads, post: Post, seconds: float) -> None:
        self._uploads, self._post, self._seconds = uploads, post, seconds
        self._posted_at = -math.inf

    def __call__(self, record: RoundRecord) -> None:
        if time.monotonic() - self._posted_at >= self._seconds:
            if self._post(self._uploads.pack()):
                raise _Stopped
            self._posted_at = time.monotonic()


class Uploads:
    """Packs what is new in a run's folder."""

    def __init__(self, folder: Path, caught: list[warnings.WarningMessage]) -> None:
        self._folder, self._caught = folder, caught
        self._n_bytes, self._n_warnings = 0, 0  # of the records, that were sent
        self._stamps = {name: _stamp(folder / name) for name in REPLACED_FILES}  # what came with the request is known

    def pack(self) -> Upload:
        """Between two rounds: then the records are not behind the checkpoint."""
        stamps = {name: _stamp(self._folder / name) for name in REPLACED_FILES}
        new = [name for name in REPLACED_FILES if stamps[name] != self._stamps[name]]
        lines = b"".join(path.read_bytes() for path in list_record_files(self._folder))[self._n_bytes :]
        notes = tuple(str(warning.message) for warning in self._caught[self._n_warnings :])
        upload = Upload(self._n_bytes, lines, {name: (self._folder / name).read_bytes() for name in new}, notes)
        self._n_bytes, self._n_warnings, self._stamps = self._n_bytes + len(lines), len(self._caught), stamps
        return upload


def _stamp(path: Path) -> tuple[int, int] | None:
    """Another value after each replacement."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino
