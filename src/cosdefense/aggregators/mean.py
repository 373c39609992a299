"""Mean: the weighted average, as in federated averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017. https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ..core import Aggregator, Cohort, State
from ..ops import weighted_sum


@dataclass(frozen=True)
class Mean(Aggregator):
    """Σ wᵢ uᵢ / Σ wᵢ. One liar can move it anywhere."""

    skips_rejected: ClassVar[bool] = True

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        # Shares first: a sum of finite rows may overflow, their weighted average cannot.
        shares = cohort.weights / cohort.weights.sum()
        return weighted_sum(cohort.updates, shares), state
