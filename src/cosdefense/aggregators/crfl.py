"""CRFL: clip the new global model and add noise to it.

Xie, Chen, Chen, Li. CRFL: Certifiably Robust Federated Learning against Backdoor Attacks. ICML 2021.
https://arxiv.org/abs/2106.08283

The paper certifies predictions by a vote of noisy copies of the final model, without noise from the last round. That is
out of scope: here every round adds noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State, generator
from ..ops import compute_dtype, row_norms
from .mean import Mean


@dataclass(frozen=True)
class CRFL(Aggregator):
    """The update that leads to (w + ū) · min(1, ρ / ‖w + ū‖) + N(0, std²), where ρ = min(growth · t + start, max_norm).

    The model is clipped, not the update: t counts the rounds from 0. Other implementations clip the update, which is a
    different rule. The norm is that of the trainable part, and buffers get no noise. No client is rejected: within the
    ball an attack passes at full strength. A model that needs a larger norm is shrunk in every round. A CPU and a GPU
    draw different noise from the same seed.

    Args:
        start: The largest norm of the model in the first round.
        growth: How much the largest norm grows per round.
        max_norm: What it grows to. These three are the authors' for MNIST.
        std: The standard deviation of the noise in every coordinate.
    """

    start: float = 2.0
    growth: float = 0.1
    max_norm: float = 15.0
    std: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.start <= self.max_norm < math.inf:
            raise ValueError(f"CRFL needs 0 < start <= max_norm, got {self.start} and {self.max_norm}")
        for name in ("growth", "std"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"CRFL.{name} must be at least 0 and finite, got {getattr(self, name)}")

    def init(self) -> int:
        return 0

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        update, _ = Mean()(cohort, None)
        n_trainable, dtype = cohort.layout.n_trainable, compute_dtype(update.dtype)
        params, step = cohort.params[:n_trainable].to(dtype), update[:n_trainable].to(dtype)
        limit = min(self.growth * state + self.start, self.max_norm)
        factor = min(1.0, limit / max(float(row_norms(step[None], -params)), 1e-300))
        rng = generator(cohort.seed, "crfl", device=update.device)
        noise = torch.randn(n_trainable, generator=rng, dtype=dtype, device=update.device)
        # (w + ū) · factor − w, without the rounding of w + ū where nothing is clipped
        moved = step * factor + params * (factor - 1) + self.std * noise
        largest = torch.finfo(update.dtype).max
        update[:n_trainable] = moved.clamp(-largest, largest).to(update.dtype)
        return update, state + 1
