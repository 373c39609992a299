"""NearDuplicates: clients that say the same count as one voice.

That colluders resemble each other more than honest clients do is FoolsGold's observation (see `foolsgold.py`). This
rule, the project's own, looks at one round, and measures resemblance by what is usual in this federation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..core import Cohort, Filter, Judgment, State, check_decay, running_average
from ..ops import cosines

QUARTILE = 0.75  # among honest clients and liars of any share, about here lies the cosine of two honest ones
ROUNDING = 1e-6  # where everybody says the same, differences below it mean nothing


@dataclass(frozen=True)
class NearDuplicates(Filter):
    """Weight 1 / (1 + Σ eᵢⱼ²), where eᵢⱼ = max(0, cᵢⱼ − c) / (1 − c) compares a cosine with the usual one.

    m identical updates weigh as much as one. The usual cosine c is the running average of each round's upper quartile,
    one number, and never negative: with similar data everybody is alike, and nobody counts less for it. Rejects nobody;
    the score is how many others say the same.
    """

    decay: float = 0.95  # how much of the usual cosine is the past's

    def __post_init__(self) -> None:
        check_decay(self)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        n = len(cohort)
        likeness = cosines(cohort.trainable())
        pairs = likeness[~torch.eye(n, dtype=torch.bool, device=likeness.device)]
        now = max(0.0, float(np.quantile(pairs.cpu().numpy(), QUARTILE))) if n > 1 else state  # torch's has a limit
        usual = now if state is None else state
        if usual is None:  # nobody to compare with, neither now nor before
            return Judgment(torch.zeros_like(cohort.weights), torch.ones_like(cohort.weights)), state
        excess = ((likeness - usual) / max(1 - usual, ROUNDING)).clamp(0, 1).fill_diagonal_(0)
        echoes = excess.square().sum(dim=1)
        weights = (1 / (1 + echoes)).to(cohort.weights.dtype)
        return Judgment(echoes.to(cohort.weights.dtype), weights), running_average(state, now, self.decay)
