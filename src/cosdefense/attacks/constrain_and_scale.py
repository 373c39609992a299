"""Constrain and scale: a backdoor trained within a ball around the global model, then scaled up.

Scaling: Bagdasaryan, Veit, Hua, Estrin, Shmatikov. How To Backdoor Federated Learning. AISTATS 2020.
https://arxiv.org/abs/1807.00459
Projection (PGD): Wang, Sreenivasan, Rajput, Vishwakarma, Agarwal, Sohn, Lee, Papailiopoulos. Attack of the Tails: Yes,
You Really Can Backdoor Federated Learning. NeurIPS 2020. https://arxiv.org/abs/2007.05084
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import ClientHook, Cohort, Layout, State
from ..ops import rescale_rows, row_norms
from .attack import TrainingPlan
from .backdoor import Backdoor


@dataclass(frozen=True)
class ConstrainAndScale(Backdoor):
    """The backdoor, with w ← w₀ + (w − w₀) · min(1, radius / ‖w − w₀‖) after every step. γ · (w − w₀) is sent.

    w₀ is the global model and γ is `scale`. With the default, γ = n / n_malicious, the mean moves by the malicious
    clients' mean update. The norm is over the trainable coordinates. A norm limit below γ · radius weakens the attack.
    In a real federation, where only the trained update can be changed, it is projected once.

    Args:
        radius: The largest norm of the update before scaling. Public commands use 2 for CIFAR-10; other public code
            uses 0.25 for MNIST and 0.083 for CIFAR-10.
    """

    scale: float | None = None
    radius: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.radius < math.inf:
            raise ValueError(f"ConstrainAndScale.radius must be positive and finite, got {self.radius}")

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return TrainingPlan(self.steps, hooks=(StayInBall(params, self.radius),))

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        return super().forge(project_rows(cohort, self.radius), malicious, state)


@dataclass(frozen=True, eq=False)
class StayInBall(ClientHook):
    """After every step, move the weights to the nearest point within `radius` of the start. Buffers are left alone."""

    start: Float[Tensor, " d"]
    radius: float

    def step(
        self,
        params: Float[Tensor, " d"],
        gradient: Float[Tensor, " d"],
        previous: Float[Tensor, " d"] | None,
        layout: Layout,
        lr: float,
    ) -> Float[Tensor, " d"]:
        t = layout.n_trainable
        offset = params[:t] - self.start[:t]
        norm = torch.linalg.vector_norm(offset.double())  # no block-wise norm: this runs inside torch.func.vmap
        inside = self.start[:t] + offset * (self.radius / norm.clamp_min(self.radius)).to(offset.dtype)
        return torch.cat([inside, params[t:]])


def project_rows(cohort: Cohort, radius: float) -> Cohort:
    """The cohort with every update at most `radius` long over the trainable coordinates."""
    norms, t = row_norms(cohort.trainable()), cohort.layout.n_trainable
    updates = cohort.updates.clone()
    updates[:, :t] = rescale_rows(updates[:, :t], radius / norms.clamp_min(radius))
    return replace(cohort, updates=updates)
