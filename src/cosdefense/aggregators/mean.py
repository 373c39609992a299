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
from ..ops import compute_dtype, weighted_sum


@dataclass(frozen=True)
class Mean(Aggregator):
    """Σ wᵢ uᵢ / Σ wᵢ. A single malicious client can move it anywhere."""

    skips_rejected: ClassVar[bool] = True

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        # Divide the weights first: a sum of finite rows may overflow, their weighted average cannot.
        weights = cohort.weights.to(compute_dtype(cohort.weights.dtype))
        return weighted_sum(cohort.updates, weights / weights.sum()), state
