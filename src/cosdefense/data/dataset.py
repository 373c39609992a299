"""The one type that every dataset is read into, whatever it was read from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from ..core.sample_checks import are_pixels
from .parsers import DataError

# Sizes have no names here: those of training and test differ.
Inputs = UInt8[Tensor, "_ _ _ _"] | Float[Tensor, "_ ..."] | Int64[Tensor, "_ ..."]
Targets = Int64[Tensor, "_ ..."] | Float[Tensor, "_ ..."]
Owners = Int64[Tensor, " _"]  # for every sample, the client that owns it

IGNORED = -100  # a class that neither loss nor accuracy counts, as in `torch.nn.functional.cross_entropy`


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples for training and for testing: inputs, and the targets that a model should answer with.

    Args:
        name: How it is called in records and messages.
        train_inputs: One sample per row. Bytes [m, channels, height, width] are pixels, and models get them as numbers
            in [0, 1]. Floating-point numbers of any shape are features. 64-bit integers are token ids.
        train_targets: Classes as 64-bit integers from 0: [m], or [m, …] where every sample has many (segmentation).
            Floating-point numbers, [m] or [m, k], are values to predict (regression).
        test_inputs: Likewise, for testing.
        test_targets: Likewise, for testing.
        classes: The names of the classes. Empty: the targets are values.
        mean: Per channel, or per feature: models get (inputs − mean) / std.
        std: Likewise.
        note: What to write beside numbers measured on it.
        clients: The names of the clients that samples belong to. Empty: samples belong to nobody in particular.
        train_clients: The client of every training sample, as an index of `clients`.
        test_clients: The client of every test sample. None: not known.
    """

    name: str
    train_inputs: Inputs
    train_targets: Targets
    test_inputs: Inputs
    test_targets: Targets
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    note: str = ""
    clients: tuple[str, ...] = ()
    train_clients: Owners | None = None
    test_clients: Owners | None = None

    def __post_init__(self) -> None:
        for part, inputs, targets in (
            ("training", self.train_inputs, self.train_targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            where = f"{self.name} ({part})"
            if len(inputs) == 0 or len(inputs) != len(targets):
                raise DataError(f"{where}: needed as many targets as inputs, found {len(targets)} and {len(inputs)}")
            _check_inputs(inputs, where)
            self._check_targets(targets, where)
        for name in ("inputs", "targets"):
            train, test = getattr(self, f"train_{name}"), getattr(self, f"test_{name}")
            if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
                found = " and ".join(f"{tuple(part.shape[1:])} of {part.dtype}" for part in (train, test))
                raise DataError(f"{self.name}: needed {name} of one shape for training and test, found {found}")
        self._check_clients()

    @property
    def n_classes(self) -> int:
        """The number of classes; 0: the targets are values."""
        return len(self.classes)

    @property
    def has_pixels(self) -> bool:
        """Whether the inputs are images with pixels in [0, 1]."""
        return are_pixels(self.train_inputs)

    @cached_property
    def digest(self) -> str:
        """A digest of the content: the same samples have the same one, whatever they were read from."""
        digest = hashlib.sha256()
        words = [*self.classes, "", *self.clients, "", *map(repr, (*self.mean, *self.std))]
        digest.update("\0".join(words).encode())
        for tensor in (
            *(self.train_inputs, self.train_targets, self.train_clients),
            *(self.test_inputs, self.test_targets, self.test_clients),
        ):
            if tensor is not None:
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()[:16]

    def to(self, device: torch.device) -> Dataset:
        """The same samples on this device."""
        return replace(
            self,
            train_inputs=self.train_inputs.to(device),
            train_targets=self.train_targets.to(device),
            test_inputs=self.test_inputs.to(device),
            test_targets=self.test_targets.to(device),
        )

    def _check_targets(self, targets: Tensor, where: str) -> None:
        if not self.classes:
            if not targets.is_floating_point():
                raise DataError(f"{where}: needed names of the classes, or targets that are floating-point numbers")
            _check_finite(targets, f"{where}: targets")
            return
        last, counted = self.n_classes - 1, targets[targets != IGNORED]
        if targets.dtype != torch.int64:
            raise DataError(f"{where}: needed classes as 64-bit integers, found {targets.dtype}")
        if len(counted) and not (int(counted.min()) >= 0 and int(counted.max()) <= last):
            found = f"{int(counted.min())} to {int(counted.max())}"
            raise DataError(f"{where}: needed labels from 0 to {last}, found {found}")

    def _check_clients(self) -> None:
        if bool(self.clients) != (self.train_clients is not None):
            raise DataError(f"{self.name}: needed names of clients together with the client of every training sample")
        for owners, targets in ((self.train_clients, self.train_targets), (self.test_clients, self.test_targets)):
            if owners is None:
                continue
            if owners.shape != (len(targets),) or owners.dtype != torch.int64:
                found = f"{tuple(owners.shape)} of {owners.dtype}"
                raise DataError(f"{self.name}: needed one client per sample as 64-bit integers, found {found}")
            if int(owners.min()) < 0 or int(owners.max()) >= len(self.clients):
                raise DataError(f"{self.name}: needed clients from 0 to {len(self.clients) - 1}, found others")


def _check_inputs(inputs: Tensor, where: str) -> None:
    if inputs.dtype == torch.uint8 and inputs.ndim != 4:
        shape = tuple(inputs.shape)
        raise DataError(f"{where}: bytes are pixels, and need shape (m, channels, height, width), found {shape}")
    if inputs.is_floating_point():
        _check_finite(inputs, f"{where}: inputs")
    elif inputs.dtype not in (torch.uint8, torch.int64):
        raise DataError(
            f"{where}: needed inputs of bytes (pixels), floating-point numbers or 64-bit integers (token ids), "
            f"found {inputs.dtype}"
        )


def _check_finite(values: Tensor, where: str) -> None:
    n = int((~values.isfinite()).sum())
    if n:
        raise DataError(f"{where}: needed finite numbers, found {n} that are not")
