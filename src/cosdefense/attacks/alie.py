"""A Little Is Enough: move every coordinate away from the honest mean, but within the range of honest values.

Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning. NeurIPS 2019.
https://arxiv.org/abs/1902.06156

The sign (μ minus, not plus) and the population standard deviation follow the authors' code as remembered; this was not
checked again. Other public code uses plus, which corresponds to a negative z here.
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
    """All malicious clients send μ − z · σ, the mean and standard deviation per coordinate of the known updates.

    The paper's z: m malicious clients among n need s = ⌊n / 2 + 1⌋ − m honest supporters for a majority, and
    Φ(z) = (n − m − s) / (n − m). For few malicious clients (1 or 2 of 10) this is 0 or less. `min_z` then applies; with
    its default they send the mean. Where the malicious clients are a majority already, the formula has no bound and z
    is `max_z`.

    Args:
        z: The number of standard deviations. None: the paper's formula.
        knowledge: "full": the honest updates are known. "partial", as in the paper: the malicious clients' own updates
            are used instead.
        max_z: The upper limit of the z that the formula gives.
        min_z: The lower limit of the z that the formula gives. The authors' experiments use z = 1.5 throughout.
    """

    z: float | None = None
    knowledge: Knowledge = "full"
    max_z: float = 3.0
    min_z: float = 0.0

    def __post_init__(self) -> None:
        if self.z is not None and not math.isfinite(self.z):
            raise ValueError(f"ALIE.z must be finite, got {self.z}")
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 0 <= self.max_z < math.inf:
            raise ValueError(f"ALIE.max_z must be at least 0 and finite, got {self.max_z}")
        if not 0 <= self.min_z <= self.max_z:
            raise ValueError(f"ALIE.min_z must be from 0 to max_z = {self.max_z}, got {self.min_z}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        known = cohort.updates[known_rows(malicious, self.knowledge)].double()  # a float32 square overflows at 1e19
        z = self._compute_z(len(cohort), int(malicious.sum())) if self.z is None else self.z
        forged = known.mean(dim=0) - z * known.std(dim=0, correction=0)
        return forged.to(cohort.updates.dtype).expand_as(cohort.updates), state

    def _compute_z(self, n: int, n_malicious: int) -> float:
        n_honest, n_supporters = n - n_malicious, n // 2 + 1 - n_malicious
        if n_supporters <= 0:
            return self.max_z
        probability = (n_honest - n_supporters) / n_honest
        z = NormalDist().inv_cdf(probability) if probability > 0.5 else 0.0
        return min(self.max_z, max(self.min_z, z))
