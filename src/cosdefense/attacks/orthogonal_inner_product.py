"""Inner product manipulation that CosDefense cannot detect.

The attack of `InnerProduct` with a last layer orthogonal to the global model's. This variation was designed for this
project.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._geometry import remove_projection
from .inner_product import InnerProduct


@dataclass(frozen=True)
class OrthogonalInnerProduct(InnerProduct):
    """All malicious clients send −epsilon · (mean of the honest updates), made orthogonal in the last layer.

    The projection of the last layer onto the last layer of the global model is removed. CosDefense then gives the
    update a score of 0, the least suspicious one.

    Args:
        epsilon: The factor, as for inner product manipulation.
    """

    epsilon: float = 5.0

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        rows, state = super().forge(cohort, malicious, state)
        forged, head = rows[0].clone(), cohort.layout.slices[cohort.layout.require_head()]
        forged[head] = remove_projection(forged[head], cohort.params[head])
        return forged.expand_as(rows), state
