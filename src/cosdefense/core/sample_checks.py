"""What attacks and client-side defenses ask of the samples. The errors name what was needed and what was found."""

from __future__ import annotations

import torch
from torch import Tensor


class UnsuitableData(ValueError):
    """An attack or a client hook was made for other samples."""


def are_pixels(inputs: Tensor) -> bool:
    """Whether these are images: bytes [m, channels, height, width], or such numbers from 0 to 1."""
    if inputs.dtype == torch.uint8:
        return True
    if inputs.ndim != 4 or not inputs.is_floating_point() or len(inputs) == 0:
        return False
    return bool((inputs.min() >= 0) & (inputs.max() <= 1))


def require_pixels(who: str, inputs: Tensor) -> None:
    """Refuse inputs [m, …] that are not images with pixels in [0, 1]."""
    if not are_pixels(inputs):
        raise UnsuitableData(
            f"{who} needs images [channels, height, width] with pixels in [0, 1], found {_describe(inputs)}"
        )


def require_images(who: str, inputs: Tensor, targets: Tensor) -> None:
    """Refuse batches whose samples do not have the three dimensions of an image. Values are not looked at."""
    if inputs.ndim - targets.ndim != 3 or not inputs.is_floating_point():
        shape = tuple(inputs.shape[targets.ndim :])
        raise UnsuitableData(
            f"{who} needs images [channels, height, width] with pixels in [0, 1], found samples of shape {shape} "
            f"and type {_name(inputs)}"
        )


def require_classes(who: str, targets: Tensor, n_classes: int) -> None:
    """Refuse targets that are values."""
    if n_classes < 2 or targets.is_floating_point():
        raise UnsuitableData(f"{who} needs classes, found targets that are values of type {_name(targets)}")


def require_one_class(who: str, targets: Tensor, n_classes: int) -> None:
    """Refuse targets [m, …] that are values, or several classes per sample."""
    require_classes(who, targets, n_classes)
    if targets.ndim != 1:
        raise UnsuitableData(f"{who} needs one class per sample, found targets of shape {tuple(targets.shape[1:])}")


def _describe(inputs: Tensor) -> str:
    found = f"samples of shape {tuple(inputs.shape[1:])} and type {_name(inputs)}"
    if inputs.ndim == 4 and inputs.is_floating_point() and len(inputs):
        found += f" from {float(inputs.min()):.3g} to {float(inputs.max()):.3g}"
    return found


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
