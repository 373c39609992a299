"""Min-Sum: the longest perturbation whose sum of squared distances to honest updates is one that honest clients have.

Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021.

The authors' released notebooks take the smallest of the honest clients' sums as the bound. The formula as it is usually
quoted takes the largest, which gives the stronger attack. Which one the paper prints could not be confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._knowledge import Knowledge, check_choice
from ._perturbation import Direction, PerturbedMean, solve_gamma
from .attack import Attack

Bound = Literal["max", "min"]


@dataclass(frozen=True)
class MinSum(Attack):
    """All malicious clients send μ + γ · p, with the largest γ for which Σ ‖μ + γ · p − u‖² ≤ max Σ ‖u' − u‖².

    u and u' are the known updates and μ is their mean. Distances ignore buffers; the buffers of μ are perturbed like
    the weights.

    Args:
        direction: The direction p. "unit": −μ / ‖μ‖, "sign": −sign(μ), "std": −std(u), per coordinate.
        knowledge: "full": the honest updates are known. "partial": the malicious clients' own updates are used
            instead.
        bound: Which of the known updates' sums is the bound: "max", or "min" as in the authors' code.
    """

    direction: Direction = "unit"
    knowledge: Knowledge = "full"
    bound: Bound = "max"

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, Direction)
        check_choice("knowledge", self.knowledge, Knowledge)
        check_choice("bound", self.bound, Bound)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        perturbed = PerturbedMean(cohort, malicious, self.knowledge, self.direction)
        sums = perturbed.distances_between_known.sum(dim=1)
        bound, n_known = sums.max() if self.bound == "max" else sums.min(), len(sums)
        gamma = solve_gamma(perturbed.constant.sum(), perturbed.linear.sum(), n_known * perturbed.square, bound)
        return perturbed.at(gamma).to(cohort.updates.dtype).expand_as(cohort.updates), state
