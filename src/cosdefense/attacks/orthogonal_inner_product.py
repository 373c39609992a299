"""Inner product manipulation that CosDefense cannot see.

The attack of `inner_product.py`; hiding its last layer from CosDefense is this project's own variation.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._geometry import without
from .inner_product import InnerProduct


@dataclass(frozen=True)
class OrthogonalInnerProduct(InnerProduct):
    """Minus epsilon times the honest mean, its last layer without what points along the global last layer.

    CosDefense's score for it is 0, the least suspicious there is.
    """

    epsilon: float = 5.0  # as for inner product manipulation

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        rows, state = super().forge(cohort, malicious, state)
        forged, head = rows[0].clone(), cohort.layout.slices[cohort.layout.require_head()]
        forged[head] = without(forged[head], cohort.params[head])
        return forged.expand_as(rows), state
