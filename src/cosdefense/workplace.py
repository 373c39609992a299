"""Where and by how many the work is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .options import ConfigError

WORKER = "--worker"  # the hidden option by which a process knows that another one started it


@dataclass(frozen=True)
class Workplace:
    """Where and by how many the work is done."""

    device: str = "auto"
    data_dir: Path | None = None
    processes: int = 1
    worker: bool = False  # started by another process, which tells the user what comes out

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ConfigError(f"--jobs must be at least 1, got {self.processes}")
