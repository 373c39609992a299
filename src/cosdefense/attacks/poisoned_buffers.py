"""Poisoned buffers: honest weights, and BatchNorm statistics that make the model useless.

Designed for this project. Filters and robust rules judge weights; what BatchNorm tracks is usually only averaged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from .attack import Attack


@dataclass(frozen=True)
class PoisonedBuffers(Attack):
    """Every malicious client adds `mean_shift` to each running mean of its own update, and `variance_shift` to each
    running variance.

    Its weights are those of honest training, so no rule that looks at weights alone can tell it from an honest client.
    A model without BatchNorm statistics is refused.

    Args:
        mean_shift: What is added to every running mean.
        variance_shift: What is added to every running variance.
    """

    mean_shift: float = 1000.0
    variance_shift: float = -20.0

    def __post_init__(self) -> None:
        for name in ("mean_shift", "variance_shift"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"PoisonedBuffers.{name} must be finite, got {getattr(self, name)}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        slices = cohort.layout.slices
        means = [where for name, where in slices.items() if name.endswith("running_mean")]
        if not means and not cohort.layout.variances:
            raise ValueError(
                "PoisonedBuffers needs a model with BatchNorm statistics (running_mean, running_var), "
                f"got {', '.join(slices)}"
            )
        forged = cohort.updates.clone()
        for where in means:
            forged[:, where] += self.mean_shift
        for where in cohort.layout.variances:
            forged[:, where] += self.variance_shift
        return forged, state
