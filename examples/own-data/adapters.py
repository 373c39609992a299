"""Adapters only: a frozen network with low-rank adapters, as LoRA trains them.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen. LoRA: Low-Rank Adaptation of Large Language Models. ICLR 2022.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class AdaptedLinear(nn.Module):
    """W x + b + B A x: W and b are frozen, A and B are trained, and B starts at zero."""

    def __init__(self, n_in: int, n_out: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(n_in, n_out).requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, n_in) / math.sqrt(n_in))
        self.lora_b = nn.Parameter(torch.zeros(n_out, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.base(inputs) + inputs @ self.lora_a.T @ self.lora_b.T
        return outputs


def adapted_mlp(shape: tuple[int, ...], n_outputs: int, hidden: int = 64, rank: int = 4) -> nn.Module:
    """In practice the frozen weights come from a file; here they are random."""
    first, last = AdaptedLinear(math.prod(shape), hidden, rank), AdaptedLinear(hidden, n_outputs, rank)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
