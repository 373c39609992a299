"""Seconds and peak memory of each phase of a round."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Profiler:
    """Collects what happens inside `with meter("train"): …`."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory: dict[str, int] = field(default_factory=dict)  # bytes: of the GPU's memory, or of the process

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._forget_peak()
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # without it the time would be that of launching
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
        self.peak_memory[phase] = max(self.peak_memory.get(phase, 0), self._peak())

    def _forget_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with suppress(OSError):  # only Linux can; elsewhere the peak is that of the process so far
                CLEAR.write_text("5")

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with suppress(OSError):
            for line in STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
