"""Min-Max: the longest perturbation whose largest distance to honest updates is one that honest clients have too.

Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._knowledge import Knowledge, check_choice
from ._perturbation import Direction, PerturbedMean, solve_gamma
from .attack import Attack


@dataclass(frozen=True)
class MinMax(Attack):
    """All malicious clients send μ + γ · p, with the largest γ for which max ‖μ + γ · p − u‖ ≤ max ‖u − u'‖.

    u and u' are the known updates and μ is their mean. Which direction p is worst depends on model and data; the
    authors try all three. Distances ignore buffers; the buffers of μ are perturbed like the weights.

    Args:
        direction: The direction p. "unit": −μ / ‖μ‖, "sign": −sign(μ), "std": −std(u), per coordinate.
        knowledge: "full": the honest updates are known. "partial": the malicious clients' own updates are used
            instead.
    """

    direction: Direction = "unit"
    knowledge: Knowledge = "full"

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, Direction)
        check_choice("knowledge", self.knowledge, Knowledge)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        perturbed = PerturbedMean(cohort, malicious, self.knowledge, self.direction)
        bound = perturbed.distances_between_known.max()
        gammas = solve_gamma(perturbed.constant, perturbed.linear, perturbed.square, bound)
        return perturbed.at(gammas.min()).to(cohort.updates.dtype).expand_as(cohort.updates), state
