"""Holds samples out for testing, where a dataset comes without such a division."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from .dataset import Dataset
from .parsers import DataError


def split_dataset(
    name: str,
    inputs: Tensor,
    targets: Tensor,
    *,
    test: float | Bool[Tensor, " m"] = 0.2,
    classes: tuple[str, ...] = (),
    clients: tuple[str, ...] = (),
    owners: Tensor | None = None,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
) -> Dataset:
    """A dataset from all samples at once.

    `test` is the share of every client's samples of every class that is held out for testing (the same ones every
    time), or which samples these are. `owners` is the client of every sample, as an index of `clients`.
    """
    held = test if isinstance(test, Tensor) else _hold_out(len(targets), test, targets if classes else None, owners)
    if not bool(held.any()) or bool(held.all()):
        raise DataError(f"{name}: needed samples for training and for testing, found {int(held.sum())} for testing")
    return Dataset(
        name,
        inputs[~held],
        targets[~held],
        inputs[held],
        targets[held],
        classes,
        mean,
        std,
        clients=clients,
        train_clients=None if owners is None else owners[~held],
        test_clients=None if owners is None else owners[held],
    )


def _hold_out(n: int, share: float, labels: Tensor | None, owners: Tensor | None) -> Bool[Tensor, " n"]:
    """A share of every group: samples of one client and one class."""
    if not 0 < share < 1:
        raise DataError(f"test must be a share between 0 and 1, got {share}")
    order: NDArray[np.int64] = np.random.default_rng(0).permutation(n)  # a file may be sorted
    keys = [key.numpy()[order] for key in (labels, owners) if key is not None and key.ndim == 1]
    if keys:
        order = order[np.lexsort(keys)]
    place = np.arange(n)
    # Groups follow each other in `order`, so every k-th sample takes the same share of each, as nearly as possible.
    taken = np.floor((place + 1) * share) > np.floor(place * share)
    held = np.zeros(n, dtype=bool)
    held[order[taken]] = True
    return torch.from_numpy(held)
