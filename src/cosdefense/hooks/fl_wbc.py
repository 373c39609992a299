"""FL-WBC, white blood cells: clients shake the coordinates in which a past attack could survive.

Sun, Li, DiValentin, Hassanzadeh, Chen, Li. FL-WBC: Enhancing Robustness against Model Poisoning Attacks
in Federated Learning from a Client Perspective. NeurIPS 2021. https://arxiv.org/abs/2110.13864
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import ClientHook, Layout


@dataclass(frozen=True)
class FLWBC(ClientHook):
    """w ← w + lr · Υ where |gₖ − gₖ₋₁| ≤ |Υ|, with Υ ~ Laplace(0, strength) in every weight; biases stay.

    Where the gradient barely changes along the way, honest training does not undo what an attack
    left behind. It takes two local steps to see a change: with one, nothing happens.
    """

    strength: float = 0.4  # the scale of the Laplace noise: the value of the authors' CIFAR-10 command

    def __post_init__(self) -> None:
        if not 0 < self.strength < math.inf:
            raise ValueError(f"FLWBC.strength must be positive and finite, got {self.strength}")

    def step(
        self,
        params: Float[Tensor, " d"],
        gradient: Float[Tensor, " d"],
        previous: Float[Tensor, " d"] | None,
        layout: Layout,
        lr: float,
    ) -> Float[Tensor, " d"]:
        if previous is None:
            return params
        # From torch's own stream, which the simulator seeds: the noise of each client is its own.
        uniform = torch.rand_like(params) - 0.5
        noise = -self.strength * uniform.sign() * torch.log1p(-2 * uniform.abs().clamp_max(0.49999997))
        quiet = (gradient - previous).abs() <= noise.abs()
        return params + lr * noise * (quiet & _is_weight(layout, params.device))


def _is_weight(layout: Layout, device: torch.device) -> Tensor:
    """Trained tensors with "weight" in their name, as the authors' code selects them."""
    chosen = torch.zeros(layout.size, dtype=torch.bool, device=device)
    for name in layout.trainable:
        if "weight" in name:
            chosen[layout.slices[name]] = True
    return chosen
