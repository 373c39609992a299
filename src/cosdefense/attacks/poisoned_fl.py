"""PoisonedFL: fake clients push the model in the same random direction in every round.

Xie, Fang, Gong. Model Poisoning Attacks to Federated Learning via Multi-Round Consistency. CVPR 2025.
https://arxiv.org/abs/2404.15611

Follows the authors' released code. One thing differs: a coordinate that did not move counts as not aligned; there the
sign of its value decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State, generator
from ..ops import row_norms
from ._geometry import normalize
from .attack import Attack

DECAY, MIN_SCALE = 0.7, 0.5  # the factor is reduced by DECAY, but not below MIN_SCALE
CONFIDENCE = 0.99


@dataclass(frozen=True)
class PoisonedFLState:
    """What the fake clients remember, over the trainable coordinates."""

    rounds: int
    seed: int  # decides the signs
    scale: float  # c
    params: Float[Tensor, " t"]  # the global model of the last round
    window_start: Float[Tensor, " t"]  # the global model at the last feedback
    sent: Float[Tensor, " t"]  # what they sent last


@dataclass(frozen=True)
class PoisonedFL(Attack):
    """All malicious clients send c · ‖g‖ · v ⊙ s, with zeros in the buffers. In the first round they send zeros.

    s is a random vector of signs that never changes. g is the last change of the global model, and v = |g − m · ‖g‖ /
    ‖m‖|, scaled to norm 1, where m is what they sent last. Every `window` rounds they count the coordinates in which
    the global model has moved along s. Are there fewer than 99 % of random models would have, c becomes 0.7 · c, but
    not less than 0.5. They need neither data nor the updates of others nor knowledge of the defense.

    Args:
        scale: The first c. The authors' command uses 8.
        window: How many rounds lie between two looks at the effect.
    """

    needs_local_training: ClassVar[bool] = False
    scale: float = 8.0
    window: int = 50

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ValueError(f"PoisonedFL.scale must be positive and finite, got {self.scale}")
        if self.window < 1:
            raise ValueError(f"PoisonedFL.window must be at least 1, got {self.window}")

    def init(self) -> PoisonedFLState:
        empty = torch.empty(0, dtype=torch.float64)
        return PoisonedFLState(0, 0, self.scale, empty, empty, empty)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        params = cohort.params[: cohort.layout.n_trainable].double()
        forged = torch.zeros_like(cohort.updates)
        if state.rounds == 0:
            zeros = torch.zeros_like(params)
            return forged, PoisonedFLState(1, cohort.seed, state.scale, params, params, zeros)
        signs = draw_signs(state.seed, len(params), params.device)
        if state.rounds % self.window == 0:
            state = _look_at_effect(params, signs, state)
        sent = _direct(params - state.params, state.sent, signs, state.scale)
        forged[:, : len(params)] = sent.to(forged.dtype)
        sent = sent if bool(malicious.any()) else state.sent
        return forged, replace(state, rounds=state.rounds + 1, params=params, sent=sent)


def draw_signs(seed: int, size: int, device: torch.device = torch.device("cpu")) -> Float[Tensor, " t"]:
    """One random sign per coordinate. A CPU and a GPU draw different signs."""
    rng = generator(seed, "poisonedfl", device=device)
    return 2.0 * torch.randint(0, 2, (size,), generator=rng, device=device).double() - 1


def _direct(
    step: Float[Tensor, " t"], sent: Float[Tensor, " t"], signs: Float[Tensor, " t"], scale: float
) -> Float[Tensor, " t"]:
    """c · ‖g‖ · v ⊙ s: large where the global model moved otherwise than the last update asked."""
    length = row_norms(step[None])
    return scale * length * normalize((step - normalize(sent) * length).abs()) * signs


def _look_at_effect(params: Float[Tensor, " t"], signs: Float[Tensor, " t"], state: PoisonedFLState) -> PoisonedFLState:
    """Reduce c if the global model does not follow the signs more often than by chance."""
    n_aligned = int(((params - state.window_start).sign() == signs).sum())
    has_no_effect = n_aligned < aligned_by_chance(len(params))
    scale = DECAY * state.scale if has_no_effect and DECAY * state.scale >= MIN_SCALE else state.scale
    return replace(state, scale=scale, window_start=params)


def aligned_by_chance(size: int) -> int:
    """The 99 % quantile of Binomial(size, ½), by the normal approximation with continuity correction."""
    return math.ceil(size / 2 + NormalDist().inv_cdf(CONFIDENCE) * math.sqrt(size) / 2 - 0.5)
