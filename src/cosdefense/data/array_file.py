"""Reads a dataset from one NumPy archive, `arrays.npz`."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .dataset import Dataset
from .parsers import DataError
from .splitting import split_dataset

Array = NDArray[Any]

# How inputs and targets are called: our own words, and those of Keras and of MedMNIST.
SPELLINGS = (("inputs", "targets"), ("x", "y"), ("images", "labels"))


def read_arrays(path: Path, test: float = 0.2) -> Dataset:
    """Arrays by name.

    `train_inputs`, `train_targets`, `test_inputs` and `test_targets` (or `x_train`, `y_train`, …, or `train_images`,
    `train_labels`, …); or `inputs` and `targets` of all samples, of which the share `test` is held out for testing.
    Optional: `classes` and `clients`, names; `train_clients` and `test_clients`, or `owners`, the client of every
    sample as an index of `clients`. Pickled objects are refused.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Array] = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: needed a readable .npz file of plain arrays, found {error}") from error
    divided = _find_divided(arrays)
    if divided is None and not {"inputs", "targets"} <= arrays.keys():
        needed = "train_inputs, train_targets, test_inputs and test_targets, or inputs and targets"
        raise DataError(f"{path}: needed arrays {needed}, found {', '.join(arrays) or 'none'}")
    targets = [arrays["targets"]] if divided is None else [divided[1], divided[3]]
    names = _read_names(arrays, "classes")
    if not names and all(np.issubdtype(part.dtype, np.integer) for part in targets):
        names = tuple(map(str, range(1 + max((int(part.max()) for part in targets if part.size), default=-1))))
    clients = _read_names(arrays, "clients")
    if divided is None:
        return split_dataset(
            path.name, to_inputs(arrays["inputs"]), to_targets(targets[0]), test=test, classes=names, clients=clients,
            owners=_read_owners(arrays, "owners"),
        )  # fmt: skip
    return Dataset(
        path.name, to_inputs(divided[0]), to_targets(divided[1]), to_inputs(divided[2]), to_targets(divided[3]),
        names, clients=clients, train_clients=_read_owners(arrays, "train_clients"),
        test_clients=_read_owners(arrays, "test_clients"),
    )  # fmt: skip


def to_inputs(array: Array) -> Tensor:
    """Bytes become images [m, channels, height, width], other integers token ids, and numbers 32-bit ones."""
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[:, None]
    elif array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] in (1, 3, 4) and array.shape[1] > 4:
        array = array.transpose(0, 3, 1, 2)
    elif array.dtype == np.uint8 and array.ndim == 4:
        pass
    elif np.issubdtype(array.dtype, np.integer) or array.dtype == bool:
        array = array.astype(np.int64)
    else:
        array = array.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(array))


def to_targets(array: Array) -> Tensor:
    """Integers become classes, numbers 32-bit ones. A last dimension of one, as MedMNIST has it, is dropped."""
    if np.issubdtype(array.dtype, np.integer) or array.dtype == bool:
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        return torch.from_numpy(np.ascontiguousarray(array.astype(np.int64)))
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32)))


def _find_divided(arrays: dict[str, Array]) -> tuple[Array, ...] | None:
    for inputs, targets in SPELLINGS:
        for form in ("{part}_{name}", "{name}_{part}"):
            names = [form.format(part=part, name=name) for part in ("train", "test") for name in (inputs, targets)]
            if all(name in arrays for name in names):
                return tuple(arrays[name] for name in names)
    return None


def _read_names(arrays: dict[str, Array], key: str) -> tuple[str, ...]:
    return tuple(map(str, arrays[key].tolist())) if key in arrays else ()


def _read_owners(arrays: dict[str, Array], key: str) -> Tensor | None:
    return torch.from_numpy(arrays[key].astype(np.int64)) if key in arrays else None
