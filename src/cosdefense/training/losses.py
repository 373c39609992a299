"""Loss functions by name, and how a model's outputs become classes."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as functions
from jaxtyping import Float, Int, Shaped
from torch import Tensor

Outputs = Float[Tensor, "b *outputs"]
LossFunction = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) of a batch → the mean loss


def cross_entropy(outputs: Outputs, targets: Int[Tensor, "b *places"]) -> Float[Tensor, ""]:
    """Of classes: one output per class. Where a sample has several places, the classes are the second dimension."""
    return functions.cross_entropy(outputs, targets)


def binary_cross_entropy(outputs: Outputs, targets: Shaped[Tensor, "b *values"]) -> Float[Tensor, ""]:
    """Of two classes: one output, the logit of the second class."""
    return functions.binary_cross_entropy_with_logits(_fit(outputs, targets), targets.to(outputs.dtype))


def mse(outputs: Outputs, targets: Shaped[Tensor, "b *values"]) -> Float[Tensor, ""]:
    """The mean squared error."""
    return functions.mse_loss(_fit_values(outputs, targets), targets)


def mae(outputs: Outputs, targets: Shaped[Tensor, "b *values"]) -> Float[Tensor, ""]:
    """The mean absolute error."""
    return functions.l1_loss(_fit_values(outputs, targets), targets)


def huber(outputs: Outputs, targets: Shaped[Tensor, "b *values"]) -> Float[Tensor, ""]:
    """Squared for errors below 1, absolute above: outliers count less."""
    return functions.huber_loss(_fit_values(outputs, targets), targets)


LOSSES: dict[str, LossFunction] = {
    "cross-entropy": cross_entropy,
    "binary-cross-entropy": binary_cross_entropy,
    "mse": mse,
    "mae": mae,
    "huber": huber,
}


def sum_loss(loss: LossFunction, outputs: Outputs, targets: Tensor) -> Float[Tensor, ""]:
    """The mean loss times the number of samples: sums of several batches can be added."""
    if loss is cross_entropy and targets.ndim == 1:
        return functions.cross_entropy(outputs, targets, reduction="sum")
    return loss(outputs, targets) * len(targets)


def choose_classes(outputs: Outputs, targets: Shaped[Tensor, "b *places"]) -> Int[Tensor, "b *places"]:
    """The class with the largest output; of a single output, the second class where it is positive."""
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
        return outputs.argmax(dim=1)
    return (_fit(outputs, targets) > 0).long()


def _fit_values(outputs: Tensor, targets: Tensor) -> Tensor:
    if not targets.is_floating_point():
        raise ValueError(f"this loss needs targets that are values, found classes of type {targets.dtype}")
    return _fit(outputs, targets)


def _fit(outputs: Tensor, targets: Tensor) -> Tensor:
    """A dimension of one output is dropped: otherwise [b, 1] and [b] would give [b, b]."""
    if outputs.numel() != targets.numel():
        raise ValueError(
            f"the model must give outputs of shape {tuple(targets.shape)}, as the targets, got {tuple(outputs.shape)}"
        )
    return outputs.reshape(targets.shape)
