"""Min-Sum: as far from the honest mean as no honest client would be conspicuous, by the sum of squared distances.

Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021.

Of the honest clients' sums, the authors' code takes the smallest for the bound; the formula as it is mostly quoted
takes the largest. Which of them the paper prints could not be confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._knowledge import Knowledge, check_choice
from ._perturbation import Direction, Room, largest_step
from .attack import Attack

Bound = Literal["max", "min"]


@dataclass(frozen=True)
class MinSum(Attack):
    """All attackers send μ + γ · p, γ as large as Σ ‖sent − u‖² ≤ max Σ ‖u' − u‖² allows, over known updates u and u'.

    Statistics that are not trained count in no distance, and go along.
    """

    direction: Direction = "unit"  # p: −μ / ‖μ‖, −sign(μ), or −std(u) coordinate by coordinate
    knowledge: Knowledge = "full"  # of the honest clients' updates
    bound: Bound = "max"  # the honest client to keep up with: the most or, as in the authors' code, the least remote

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, Direction)
        check_choice("knowledge", self.knowledge, Knowledge)
        check_choice("bound", self.bound, Bound)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        room = Room(cohort, malicious, self.knowledge, self.direction)
        sums = room.between.sum(dim=1)
        bound, n_known = sums.max() if self.bound == "max" else sums.min(), len(room.constant)
        step = largest_step(room.constant.sum(), room.linear.sum(), n_known * room.square, bound)
        return room.at(step).to(cohort.updates.dtype).expand_as(cohort.updates), state
