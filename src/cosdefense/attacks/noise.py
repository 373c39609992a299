"""Noise: every malicious client sends random numbers, or adds them to its update.

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
    """Every malicious client sends independent noise from N(0, scale²) in every coordinate.

    It is drawn on the updates' device: a CPU and a GPU draw different numbers.

    Args:
        scale: The standard deviation.
        additive: Add the noise to the client's own update instead of replacing the update.
    """

    scale: float = 1.0
    additive: bool = False

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        # One random stream per client: its noise does not depend on the order of rows.
        forged, device = cohort.updates.clone(), cohort.updates.device
        clients = cohort.clients.tolist()
        for row in malicious.nonzero().flatten().tolist():
            rng = generator(cohort.seed, "noise", clients[row], device=device)
            noise = torch.randn(forged.shape[1], generator=rng, dtype=forged.dtype, device=device)
            forged[row] = self.scale * noise + (forged[row] if self.additive else 0)
        return forged, state
