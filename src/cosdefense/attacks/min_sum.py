"""Min-Sum: as far from the honest mean as no honest client would be conspicuous, by the sum of squared distances.

Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021.

Of the honest clients' sums, the authors' code takes the smallest for the bound; the formula as it is mostly quoted
takes the largest. Which of them the paper prints could not be confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Bool, Float
from torch import Tensor

from ..cohort import Cohort
from ..defense import State
from .attack import Attack
from .distances import Direction, Room, largest_step
from .trimmed_mean_poisoning import Knowledge

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
        if self.direction not in get_args(Direction):
            raise ValueError(f"direction must be one of {get_args(Direction)}, got {self.direction!r}")
        if self.knowledge not in get_args(Knowledge):
            raise ValueError(f"knowledge must be one of {get_args(Knowledge)}, got {self.knowledge!r}")
        if self.bound not in get_args(Bound):
            raise ValueError(f"bound must be one of {get_args(Bound)}, got {self.bound!r}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        room = Room(cohort, malicious, self.knowledge, self.direction)
        sums = room.between.sum(dim=1)
        bound, n_known = sums.max() if self.bound == "max" else sums.min(), len(room.constant)
        step = largest_step(room.constant.sum(), room.linear.sum(), n_known * room.square, bound)
        return room.at(step).to(cohort.updates.dtype).expand_as(cohort.updates), state
