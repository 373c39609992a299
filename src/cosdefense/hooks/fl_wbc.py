"""FL-WBC, white blood cells for federated learning: clients add noise where a past attack could survive.

Sun, Li, DiValentin, Hassanzadeh, Chen, Li. FL-WBC: Enhancing Robustness against Model Poisoning Attacks
in Federated Learning from a Client Perspective. NeurIPS 2021. https://arxiv.org/abs/2110.13864
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import ClientHook, Layout
from ..ops import compute_dtype


@dataclass(frozen=True)
class FLWBC(ClientHook):
    """w ← w + lr · Υ where |gₖ − gₖ₋₁| ≤ |Υ|, with Υ ~ Laplace(0, strength) in every weight; biases stay.

    Where the gradient hardly changes between steps, honest training does not undo the effect of an attack. A change
    is visible from the second local step on: with one local step per round the hook has no effect.

    Args:
        strength: The scale of the Laplace noise. The default is that of the authors' CIFAR-10 command.
    """

    strength: float = 0.4

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
        # From torch's global generator, which the simulator seeds for each client.
        uniform = torch.rand_like(params, dtype=compute_dtype(params.dtype)) - 0.5
        noise = -self.strength * uniform.sign() * torch.log1p(-2 * uniform.abs().clamp_max(0.49999997))
        quiet = (gradient - previous).abs() <= noise.abs()
        return params + (lr * noise * (quiet & _weight_mask(layout, params.device))).to(params.dtype)


def _weight_mask(layout: Layout, device: torch.device) -> Bool[Tensor, " d"]:
    """Trainable tensors with "weight" in their name, as the authors' code selects them."""
    mask = torch.zeros(layout.size, dtype=torch.bool, device=device)
    for name in layout.trainable:
        if "weight" in name:
            mask[layout.slices[name]] = True
    return mask
