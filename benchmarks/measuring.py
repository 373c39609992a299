"""What the benchmarks share: cases timed in turns, the peak of memory, the machine in words, tables and JSON.

Only ratios from one run mean anything on a shared machine, so competitors are timed alternately, not one
after the other: a neighbour who wakes up slows them all.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Timing:
    """How long one case took, several times."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        return f"{self.median:.3g} s [{min(self.seconds):.3g}, {max(self.seconds):.3g}]"


def timed(
    cases: Mapping[str, Callable[[], Any]], repeats: int = 5, warm_up: int = 1, patience: float = 20.0
) -> dict[str, Timing]:
    """Every case `repeats` times, in turns; a case that has already taken `patience` seconds is not asked again."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(warm_up + repeats):
        for name, case in cases.items():
            if sum(found[name]) >= patience:
                continue
            start = time.perf_counter()
            case()
            took = time.perf_counter() - start
            if number >= warm_up or took >= patience:  # who is that slow has no use for a warm-up
                found[name].append(took)
    return {name: Timing(tuple(seconds)) for name, seconds in found.items()}


def peak_memory(case: Callable[[], Any]) -> int:
    """Bytes that the process grew by at the worst moment of `case`, its result included.

    The kernel's high-water mark of the resident set, reset just before: it sees what torch, numpy, BLAS and
    Python allocate alike. Memory freed earlier is given back to the kernel first, or its reuse would not show.
    Call the case once before, so that buffers which libraries keep for good are not counted. Linux only.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM := VmRSS
    before = _status("VmRSS")
    result = case()
    peak = _status("VmHWM")
    del result
    return max(0, peak - before)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def machine(*packages: str) -> dict[str, str]:
    """The processor, the threads and the versions that a figure depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    found = {
        "cpu": f"{cpu}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


@dataclass(frozen=True)
class Table:
    """A titled table of texts, for a terminal or for a page."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([self.title, *(line.rstrip() for line in padded)])

    def markdown(self) -> str:
        ruler = ["---"] * len(self.header)
        return "\n".join([self.title, "", *(f"| {' | '.join(line)} |" for line in (self.header, ruler, *self.rows))])


def options(description: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--markdown", action="store_true", help="print tables as docs/performance.md shows them")
    return parser


def report(given: argparse.Namespace, about: Mapping[str, str], tables: Sequence[Table], results: Any) -> None:
    """Prints the tables, and writes `results` with every single timing as JSON where asked."""
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for table in tables:
        print("\n" + (table.markdown() if given.markdown else table.text()), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": dict(about), "results": results}, indent=1, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return asdict(value) | {"median": value.median} if isinstance(value, Timing) else str(value)
