"""Seconds and peak memory of phases, also where /proc or the resource module are missing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from cosdefense.simulation import profiling
from cosdefense.simulation.profiling import Profiler


def test_seconds_add_up_and_the_peak_is_that_of_the_process() -> None:
    profiler = Profiler(torch.device("cpu"))
    with profiler.measure("first"):
        block = torch.ones(64 << 20, dtype=torch.uint8)
        time.sleep(0.01)
    del block
    before = dict(profiler.peak_memory)
    for _ in range(2):
        with profiler.measure("second"):
            time.sleep(0.01)
    assert profiler.seconds["first"] >= 0.01
    assert profiler.seconds["second"] >= 0.02
    assert profiler.peak_memory["second"] > before["first"] - (8 << 20)  # the kernel counts in batches
    assert before["first"] > 64 << 20


def test_nothing_is_written_to_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *arguments: object) -> None:
        raise AssertionError(f"wrote to {path}")

    monkeypatch.setattr(Path, "write_text", refuse)
    with Profiler(torch.device("cpu")).measure("phase"):
        pass


@pytest.mark.parametrize("has_resource", [True, False])
def test_without_proc(has_resource: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has the resource module, Windows has neither."""
    monkeypatch.setattr(profiling, "STATUS", tmp_path / "status")
    if not has_resource:
        monkeypatch.setattr(profiling, "resource", None)
    profiler = Profiler(torch.device("cpu"))
    with profiler.measure("phase"):
        pass
    assert (profiler.peak_memory["phase"] > 10_000_000) == has_resource
