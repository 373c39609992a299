"""ROP, relocated orthogonal perturbation: sit where the server's last step ended, and push sideways.

Özfatura, Özfatura, Küpçü, Gündüz. Byzantines Can Also Learn From History: Fall of Centered Clipping in Federated
Learning. 2022. https://arxiv.org/abs/2208.09894

Follows a public library of attacks. There z is an absolute length; here it is in norms of the honest mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ..ops import row_norms
from ._geometry import normalize, remove_projection
from ._knowledge import check_choice, known_rows
from .attack import Attack

Pattern = Literal["ones", "sign"]
STEP_WEIGHT = 0.9  # of the server's last step in the reference direction; the honest mean has the rest


@dataclass(frozen=True)
class ROPState:
    """The global model of the last round with the attack, over the trainable coordinates; empty before the first."""

    params: Float[Tensor, " t"]


@dataclass(frozen=True)
class ROP(Attack):
    """All malicious clients send π · c + (1 − π) · μ + z · q.

    c is the last change of the global model, μ the mean of the honest updates. q = p · sin(angle) + r̂ · cos(angle),
    where r = 0.9 c + 0.1 μ, and p is the vector of ones without its projection on r, all of norm 1. In the first
    round c is 0. Centered clipping clips what is far from its last result, which c is, so that these updates are not
    clipped. Buffers are those of μ.

    Args:
        strength: z, in norms of μ.
        angle: In degrees. 270 pushes sideways, 180 straight back.
        relocation: π, from 0 to 1.
        pattern: What p is made from: a vector of "ones", or the "sign" of μ.
    """

    needs_local_training: ClassVar[bool] = False
    strength: float = 1.0
    angle: float = 270.0
    relocation: float = 1.0
    pattern: Pattern = "ones"

    def __post_init__(self) -> None:
        check_choice("pattern", self.pattern, Pattern)
        if not 0 < self.strength < math.inf:
            raise ValueError(f"ROP.strength must be positive and finite, got {self.strength}")
        if not math.isfinite(self.angle):
            raise ValueError(f"ROP.angle must be finite, got {self.angle}")
        if not 0 <= self.relocation <= 1:
            raise ValueError(f"ROP.relocation must be from 0 to 1, got {self.relocation}")

    def init(self) -> ROPState:
        return ROPState(torch.empty(0, dtype=torch.float64))

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        t = cohort.layout.n_trainable
        params, row = cohort.params[:t].double(), cohort.updates[known_rows(malicious, "full")].double().mean(dim=0)
        step = params - state.params if state.params.numel() else torch.zeros_like(params)
        row[:t] = self._forge_weights(step, row[:t])
        return row.to(cohort.updates.dtype).expand_as(cohort.updates), ROPState(params)

    def _forge_weights(self, step: Float[Tensor, " t"], mean: Float[Tensor, " t"]) -> Float[Tensor, " t"]:
        reference = normalize(STEP_WEIGHT * step + (1 - STEP_WEIGHT) * mean)
        pattern = mean.sign() if self.pattern == "sign" else torch.ones_like(mean)
        sideways = normalize(remove_projection(pattern, reference))
        angle = math.radians(self.angle)
        push = normalize(sideways * math.sin(angle) + reference * math.cos(angle))
        length = self.strength * row_norms(mean[None])
        return self.relocation * step + (1 - self.relocation) * mean + length * push
