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
    spent: dict[str, float] = field(default_factory=dict)
    peak_memory: dict[str, int] = field(default_factory=dict)
    marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)  # on a GPU

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        if self.device.type == "cuda":
            start = self._mark()
            yield
            self.marks.append((phase, start, self._mark()))
        else:
            begin = time.perf_counter()
            yield
            self._add(phase, time.perf_counter() - begin)
        self.peak_memory[phase] = self._peak()

    @property
    def seconds(self) -> dict[str, float]:
        """By phase. A GPU is waited for here, not after every phase: meanwhile the next one is prepared."""
        if self.marks:
            self.marks[-1][2].synchronize()
        for phase, start, end in self.marks:
            self._add(phase, start.elapsed_time(end) / 1000)
        self.marks.clear()
        return self.spent

    def _add(self, phase: str, seconds: float) -> None:
        self.spent[phase] = self.spent.get(phase, 0.0) + seconds

    def _mark(self) -> torch.cuda.Event:
        """What a GPU notes the time of when it has done all that was asked of it before."""
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(self.device))
        return mark

    def _peak(self) -> int:
        if self.device.type == "cuda":
            # As `torch.cuda.max_memory_allocated`, which sorts all statistics into a table first: 0.2 ms each time.
            statistics = torch.cuda.memory_stats_as_nested_dict(self.device)
            return int(statistics["allocated_bytes"]["all"]["peak"])
        with suppress(OSError):  # Linux: getrusage would also count the parent process before exec
            for line in STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        if resource is None:
            return 0
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
