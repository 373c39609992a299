"""The device of a run, and the settings of torch that decide its bits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..catalog.options import ConfigError


def choose_device(name: str = "auto") -> torch.device:
    """The device of that name; auto is a GPU where there is one. Changes no setting."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):  # others lack float64, which the rules need
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name} was asked for, but torch finds {torch.cuda.device_count()} CUDA GPUs here")
    return device


@contextmanager
def reproducible(*, tf32: bool = False) -> Iterator[None]:
    """Inside, the same seed gives the same bits, whatever the caller has set. Afterwards that is as before.

    `tf32` lets convolutions round to ten bits: too few for the same verdicts as on a CPU, so only where asked for.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    try:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, False, tf32, False
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Inside, torch computes on so many threads of a CPU."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(n)
        yield
    finally:
        torch.set_num_threads(before)


def n_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
