"""Seconds and peak memory of each phase of a round."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

STATUS = Path("/proc/self/status")


@dataclass
class Profiler:
    """Collects seconds and peak memory of what runs inside `with profiler.measure("train"): …`.

    The peak is the highest memory use of the process until the end of the phase, in bytes: its resident memory on a
    CPU, what torch allocated on a GPU. A phase that needs less than an earlier one therefore shows the earlier peak.
    (A peak of the phase alone would need a reset of counters that belong to the whole process.)
    """

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # without it only the launch of the kernels would be timed
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
        self.peak_memory[phase] = self._peak()

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with suppress(OSError):  # Linux: getrusage would also count the parent process before exec
            for line in STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        if resource is None:
            return 0
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
