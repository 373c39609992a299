"""Noisy mean: the average with Gaussian noise on top, which hides what any one client did.

Weak differential privacy: Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning?
2019. https://arxiv.org/abs/1911.07963
Calibrated noise: McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language
Models. ICLR 2018. https://arxiv.org/abs/1710.06963
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State, generator
from .mean import Mean


@dataclass(frozen=True)
class NoisyMean(Aggregator):
    """mean(u) + N(0, std²), drawn once for the aggregate; put Clip in front, or one client can drown the noise.

    Statistics (buffers) get no noise: they would cease to describe the data.
    """

    std: float = 0.025  # of the noise in every coordinate; a value public code uses, the paper's could not be confirmed
    of_sum: bool = False  # std is meant for the sum of n updates: the mean gets std / n

    def __post_init__(self) -> None:
        if not 0 <= self.std < math.inf:
            raise ValueError(f"NoisyMean.std must be at least 0 and finite, got {self.std}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        mean, _ = Mean()(cohort, None)
        std = self.std / len(cohort) if self.of_sum else self.std
        noise = torch.randn(cohort.layout.n_trainable, generator=generator(cohort.seed, "noisy mean"), dtype=mean.dtype)
        mean[: cohort.layout.n_trainable] += std * noise.to(mean.device)
        return mean, state
