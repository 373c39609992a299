"""Where runs are made, and by how many processes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..catalog.extras import MissingExtra, install_hint
from ..catalog.options import ConfigError


@dataclass(frozen=True)
class Execution:
    """On this machine, by one or several processes, or on a Ray cluster."""

    device: str = "auto"
    data_dir: Path | None = None
    processes: int | None = 1  # None: as many as fit
    ray: str | None = None  # the address of a cluster, or "local"
    gpu_share: float = 1.0  # of a GPU, what one run on a cluster asks for

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise ConfigError(f"--jobs must be at least 1, got {self.processes}")
        if not 0 < self.gpu_share <= 1:
            raise ConfigError(f"--gpu-share must be above 0 and at most 1, got {self.gpu_share:g}")
        if self.ray is None:
            return
        if self.processes != 1:
            raise ConfigError(
                "--jobs is for this machine: with --ray, the cluster decides how many runs it makes at a time"
            )
        if self.device not in ("auto", "cpu", "cuda"):  # which GPU is for Ray to say
            raise ConfigError(f"with --ray the device must be auto, cpu or cuda, got {self.device!r}")
        if find_spec("ray") is None:
            raise MissingExtra(f"--ray needs Ray, which was not found: {install_hint('ray')}")
