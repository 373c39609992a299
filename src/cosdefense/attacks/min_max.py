"""Min-Max: as far from the honest mean as no honest client would be conspicuous, by the largest distance.

Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State
from ._knowledge import Knowledge, check_choice
from ._perturbation import Direction, Room, largest_step
from .attack import Attack


@dataclass(frozen=True)
class MinMax(Attack):
    """All attackers send μ + γ · p, γ as large as max ‖sent − u‖ ≤ max ‖u − u'‖ allows, over known updates u and u'.

    Which of the three directions is worst depends on model and data; the authors try them out. Statistics that are not
    trained count in no distance, and go along.
    """

    direction: Direction = "unit"  # p: −μ / ‖μ‖, −sign(μ), or −std(u) coordinate by coordinate
    knowledge: Knowledge = "full"  # of the honest clients' updates

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, Direction)
        check_choice("knowledge", self.knowledge, Knowledge)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        room = Room(cohort, malicious, self.knowledge, self.direction)
        steps = largest_step(room.constant, room.linear, room.square, room.between.max())
        return room.at(steps.min()).to(cohort.updates.dtype).expand_as(cohort.updates), state
