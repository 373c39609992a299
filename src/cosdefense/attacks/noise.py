"""Noise: every attacker sends random numbers, instead of its update or on top of it.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017. https://arxiv.org/abs/1703.02757
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State, generator
from .attack import Attack


@dataclass(frozen=True)
class Noise(Attack):
    """Sends N(0, scale²) in every coordinate, each attacker its own; with `additive`, u + N(0, scale²)."""

    scale: float = 1.0  # the standard deviation
    additive: bool = False  # of the attacker's honest update, not instead of it

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        # One stream per identity: the same clients send the same noise on every device and in every order.
        forged = cohort.updates.clone()
        for row in malicious.nonzero().flatten().tolist():
            rng = generator(cohort.seed, "noise", int(cohort.clients[row]))
            noise = torch.randn(forged.shape[1], generator=rng, dtype=forged.dtype)
            forged[row] = self.scale * noise.to(forged.device) + (forged[row] if self.additive else 0)
        return forged, state
