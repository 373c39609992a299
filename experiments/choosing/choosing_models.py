"""Models of the experiments for docs/choosing.md: one with BatchNorm, and one of which only adapters are trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def batchnorm_cnn(shape: tuple[int, ...], n_outputs: int, width: int = 8) -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, n_outputs),
    )


class Adapted(nn.Module):
    """W x + b + B A x (LoRA): W and b are frozen, A and B are trained, and B starts at zero."""

    def __init__(self, n_in: int, n_out: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(n_in, n_out).requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, n_in) / math.sqrt(n_in))
        self.lora_b = nn.Parameter(torch.zeros(n_out, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.base(inputs) + inputs @ self.lora_a.T @ self.lora_b.T
        return outputs


def adapted_mlp(shape: tuple[int, ...], n_outputs: int, hidden: int = 64, rank: int = 4) -> nn.Module:
    """A frozen random network with adapters in both layers."""
    first, last = Adapted(math.prod(shape), hidden, rank), Adapted(hidden, n_outputs, rank)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
