"""Rows that do not fit into memory are in a file without a name, which the system removes."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest
import torch

from cosdefense.simulation import update_buffer
from cosdefense.simulation.update_buffer import allocate_updates

MAPS = Path("/proc/self/maps")


def mapped(folder: Path) -> bool:
    return str(folder) in MAPS.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc/self/maps")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_a_file_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    params = torch.zeros(1000, dtype=dtype)
    size = 7 * 1000 * params.element_size()
    assert allocate_updates(7, params, max_memory=size).shape == (7, 1000)
    assert not mapped(tmp_path)
    rows = allocate_updates(7, params, max_memory=size - 1)
    assert (rows.shape, rows.dtype) == ((7, 1000), dtype)
    assert mapped(tmp_path)
    assert not list(tmp_path.iterdir())
    expected = torch.rand(7, 1000, dtype=dtype)
    for row, values in zip(rows, expected, strict=True):
        row.copy_(values)
    assert torch.equal(rows[3:], expected[3:])
    kept = rows[2]
    del rows, row
    gc.collect()
    assert torch.equal(kept, expected[2])  # a view keeps the whole
    del kept
    gc.collect()
    assert not mapped(tmp_path)


def test_the_default_limit_is_half_of_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # a file cannot be made
    monkeypatch.setattr(update_buffer, "free_memory", lambda: 8000)
    allocate_updates(1, torch.zeros(1000))
    with pytest.raises(FileNotFoundError):
        allocate_updates(2, torch.zeros(1000))


def test_without_posix_fallocate_free_space_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    rows = allocate_updates(3, torch.zeros(1000), max_memory=0)
    rows.copy_(torch.ones(3, 1000))
    assert float(rows.sum()) == 3000
    with pytest.raises(OSError, match=r"updates need \d+ bytes in .*, found \d+ free"):
        allocate_updates(1 << 50, torch.zeros(1), max_memory=0)


def test_without_proc_memory_has_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, which does not say how much is free."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # a file cannot be made
    monkeypatch.setattr(update_buffer, "MEMINFO", tmp_path / "meminfo")
    assert allocate_updates(2, torch.zeros(1000)).shape == (2, 1000)
