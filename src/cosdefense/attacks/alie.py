"""A little is enough: every coordinate a little beside the honest mean, where honest clients are found too.

Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning. NeurIPS 2019.
https://arxiv.org/abs/1902.06156

The side (μ minus, not plus) and the population's deviation are as in the authors' code, from memory; other public code
adds, which a negative z does here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class ALIE(Attack):
    """All attackers send μ − z · σ, coordinate by coordinate, of the updates they know.

    Unless z is given, it is the paper's: with s = ⌊n / 2 + 1⌋ − m supporters that m attackers among n clients need for
    a majority, Φ(z) = (n − m − s) / (n − m). Too few attackers (z below 0) send the mean; those who are a majority
    already, and for whom the formula has no bound, go as far as `max_z`.
    """

    z: float | None = None  # standard deviations; None: as many as still find a majority
    knowledge: Knowledge = "full"  # of the honest clients' updates; the paper's attackers go by their own
    max_z: float = 3.0  # standard deviations, where the formula has no bound

    def __post_init__(self) -> None:
        if self.z is not None and not math.isfinite(self.z):
            raise ValueError(f"ALIE.z must be finite, got {self.z}")
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 0 <= self.max_z < math.inf:
            raise ValueError(f"ALIE.max_z must be at least 0 and finite, got {self.max_z}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        known = cohort.updates[known_rows(malicious, self.knowledge)].double()  # a float32 square overflows at 1e19
        z = self._supported(len(cohort), int(malicious.sum())) if self.z is None else self.z
        forged = known.mean(dim=0) - z * known.std(dim=0, correction=0)
        return forged.to(cohort.updates.dtype).expand_as(cohort.updates), state

    def _supported(self, n: int, n_malicious: int) -> float:
        honest, supporters = n - n_malicious, n // 2 + 1 - n_malicious
        if supporters <= 0:
            return self.max_z
        share = (honest - supporters) / honest
        return min(self.max_z, NormalDist().inv_cdf(share)) if share > 0.5 else 0.0
