"""Tailored: the longest perturbation of the honest mean that the server's own defense still lets through.

The AGR-tailored attacks of: Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and
Defenses for Federated Learning. NDSS 2021.

Follows the authors' released notebooks, where the search starts at an absolute length of 3 to 30. Here it starts at
four times the largest distance between honest updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..aggregators import Mean
from ..core import Cohort, Defense, State
from ..ops import row_norms
from ._defense_search import DefenseSearch
from ._knowledge import check_choice
from ._perturbation import Direction, PerturbedMean

START = 4.0  # of the search, in largest distances between known updates


@dataclass(frozen=True)
class Tailored(DefenseSearch):
    """All malicious clients send μ + γ · p, with the largest γ of a search for which the defense lets them through.

    μ is the mean of the honest updates. If the defense has filters, it lets them through if it rejects none of them.
    Otherwise a larger γ must move the result of the aggregator farther away from μ. The search halves its step: up
    where γ is let through, down where it is not. Unlike `adaptive` it tries one direction only. The defense's memory is
    known in the simulator, but not its random numbers.

    Args:
        defense: The defense to search against. None: the server's defense in the simulator, elsewhere the plain mean.
        direction: The direction p. "unit": −μ / ‖μ‖, "sign": −sign(μ), "std": −std(u), per coordinate.
        trials: How many γ are tried per round.
    """

    needs_local_training: ClassVar[bool] = False

    direction: Direction = "unit"
    trials: int = 20

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, Direction)
        if self.trials < 1:
            raise ValueError(f"Tailored.trials must be at least 1, got {self.trials}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        defense = self.defense or Defense((), Mean())
        trials = _Trials(cohort, malicious, defense, defense.init() if state is None else state, self.direction)
        gamma = trials.find_largest(self.trials)
        return trials.send(gamma).updates, trials.run(gamma)[2]


class _Trials:
    """The round, repeated with different γ."""

    def __init__(
        self, cohort: Cohort, malicious: Bool[Tensor, " n"], defense: Defense, memory: State, direction: Direction
    ) -> None:
        self.cohort, self.malicious, self.defense, self.memory = cohort, malicious, defense, memory
        self.perturbed = PerturbedMean(cohort, malicious, "full", direction)
        self.farthest = -1.0  # of all results that were let through, from the honest mean

    def find_largest(self, n_trials: int) -> float:
        """Search for γ, in the scale of `PerturbedMean`."""
        widest, length = self.perturbed.distances_between_known.max().sqrt(), self.perturbed.square.sqrt()
        gamma = step = START * float(widest / length) if float(length) > 0 else 0.0
        best = 0.0
        for _ in range(n_trials):
            step /= 2
            if self.is_let_through(gamma):
                best, gamma = gamma, gamma + step
            else:
                gamma -= step
        return best

    def is_let_through(self, gamma: float) -> bool:
        """Whether no forged row is rejected, or, without filters, whether the result is farther away than before."""
        weights, update, _ = self.run(gamma)
        if self.defense.filters:
            return bool((weights[self.malicious] != 0).all())
        t = self.cohort.layout.n_trainable
        mean = self.perturbed.at(torch.zeros((), dtype=torch.float64, device=update.device))
        distance = float(row_norms((update.double() - mean)[None, :t]))
        is_farther = distance > self.farthest
        self.farthest = max(distance, self.farthest)
        return is_farther

    def run(self, gamma: float) -> tuple[Float[Tensor, " n"], Float[Tensor, " d"], State]:
        """The weights and the update of the defense, and its memory after the round."""
        _, verdict, memory = self.defense.run_round(self.send(gamma), self.memory)
        return verdict.weights, verdict.update, memory

    def send(self, gamma: float) -> Cohort:
        """What the server would receive."""
        row = self.perturbed.at(self.perturbed.mean.new_tensor(gamma)).to(self.cohort.updates.dtype)
        updates = torch.where(self.malicious[:, None], row, self.cohort.updates)
        return replace(self.cohort, updates=updates)
