"""An app whose nodes do not import torch, which is most of the work of the process that handles a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

NDArray = np.ndarray[Any, np.dtype[Any]]
TARGET = 1.0  # what every number of the model should become
SHAPES = {"body.weight": (6, 4), "norm.running_mean": (6,), "norm.running_var": (6,), "head.weight": (3, 6)}


def build_model() -> dict[str, NDArray]:
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def take_a_step(arrays: Mapping[str, NDArray], seed: int) -> dict[str, NDArray]:
    """Three quarters of the way to the target, give or take a little."""
    rng = np.random.default_rng(seed)
    return {
        name: (array + 0.75 * (TARGET - array) + 0.02 * rng.normal(size=array.shape)).astype(np.float32)
        for name, array in arrays.items()
    }


def measure(arrays: Mapping[str, NDArray]) -> float:
    """The share of the numbers that are close to the target. An honest federation gets all of them in two rounds."""
    values = np.concatenate([array.ravel() for array in arrays.values()])
    return float(np.mean(np.abs(values - TARGET) < 0.1))
