"""Noisy mean: the average plus Gaussian noise, which hides the contribution of any single client.

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
from ..ops import compute_dtype, row_norms
from .mean import Mean


@dataclass(frozen=True)
class NoisyMean(Aggregator):
    """mean(u) + N(0, std²), where the noise is drawn once for the aggregate.

    Use it after Clip; otherwise the update of one client can be much larger than the noise. Buffers get no noise:
    they would no longer describe the data. A CPU and a GPU draw different noise from the same seed.

    Args:
        std: The standard deviation of the noise in every coordinate. The default is a value that public code uses;
            the paper's could not be confirmed.
        of_sum: Whether `std` is meant for the sum of n updates. Then the noise of the mean is std / n.
        relative: Whether `std` is in units of the largest norm among the updates. After a clip that is the norm they
            were clipped to, if at least one was. A guarantee of privacy needs a norm that is fixed before the round.
    """

    std: float = 0.025
    of_sum: bool = False
    relative: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.std < math.inf:
            raise ValueError(f"NoisyMean.std must be at least 0 and finite, got {self.std}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        mean, _ = Mean()(cohort, None)
        std = self.std / len(cohort) if self.of_sum else self.std
        if self.relative:
            std *= float(row_norms(cohort.trainable()).max())
        n_trainable, dtype = cohort.layout.n_trainable, compute_dtype(mean.dtype)
        rng = generator(cohort.seed, "noisy mean", device=mean.device)
        noise = torch.randn(n_trainable, generator=rng, dtype=dtype, device=mean.device)
        noisy = mean[:n_trainable].to(dtype) + std * noise
        largest = torch.finfo(mean.dtype).max  # half precision cannot hold noise in units of a huge norm
        mean[:n_trainable] = noisy.clamp(-largest, largest).to(mean.dtype)
        return mean, state
