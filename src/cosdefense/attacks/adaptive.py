"""Adaptive: try forged updates on the server's own defense, and send what does most damage.

Attackers that optimize against the very rule they face are the yardstick of Tramèr, Carlini, Brendel, Madry. On
Adaptive Attacks to Adversarial Example Defenses. NeurIPS 2020. https://arxiv.org/abs/2002.08347
The search is this project's own; line searches against one known rule are in Fang et al. (USENIX Security 2020),
Shejwalkar and Houmansadr (NDSS 2021), and in byzfl.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..aggregators import Mean
from ..core import Cohort, Defense, State, generator
from ._candidates import GRID, NOTHING, Forgery, Material
from ._knowledge import Knowledge, check_choice, known_rows
from ._trial_round import Rehearsal, Remembering, Trial
from .attack import Attack

STARTS = 3  # of the grid's directions, around which to search on


@dataclass(frozen=True)
class Adaptive(Attack):
    """All attackers send share · honest camouflage + magnitude · direction: of those tried, what harms most.

    Harm is how much less than the honest mean the defense's combined update moves along that mean. Directions are
    against the mean update, the same made orthogonal to the global model in every layer, its sign, its sign times the
    clients' deviations, the last layer alone, and tilted until its mean cosine with honest updates is positive. A grid
    comes first, then steps around the best three, up to 25 lengths of the mean. It is greedy: what a forgery does to
    later rounds, through what a defense remembers, does not count.

    With full knowledge it is the real round that is tried: the honest updates, the server's data where it has some,
    and, told by a simulator, what the defense remembers. Only its dice are not known. With partial knowledge, honest
    clients are imagined with the mean and the covariance of the attackers' own updates, and the defense's memory is
    imagined by playing all rounds of the attack with them; so it is, too, for a defense that is not the server's.
    """

    defense: Defense | None = None  # what they try it on. None: the server's, if a simulator tells it, else the mean
    knowledge: Knowledge = "full"  # of the honest clients' updates
    trials: int = 150  # how often the defense is asked in a round; the grid has 73
    stop_at_damage: float | None = (
        None  # harm that ends the search: 1 stops the model, 2 turns it around; none: search on
    )

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if self.trials < 2:  # nothing at all, and inner product manipulation
            raise ValueError(f"Adaptive.trials must be at least 2, got {self.trials}")
        if self.stop_at_damage is not None and not self.stop_at_damage > 0:
            raise ValueError(f"Adaptive.stop_at_damage must be positive, got {self.stop_at_damage}")

    def init(self) -> State:
        return None if self.defense is None else self.defense.init()

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        if self.defense not in (None, defense):
            return self, state
        return replace(self, defense=defense), memory if self.knowledge == "full" else state

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        order = cohort.clients.argsort()  # not even the last bit of a trial may depend on the order of arrival
        malicious = malicious[order]
        sorted_ = replace(
            cohort, updates=cohort.updates[order], clients=cohort.clients[order], weights=cohort.weights[order]
        )
        defense = self.defense or Defense((), Mean())
        rehearsal = self._rehearsal(sorted_, malicious, defense, defense.init() if state is None else state)
        best = _searched(rehearsal.play, self.trials, math.inf if self.stop_at_damage is None else self.stop_at_damage)
        forged = cohort.updates.clone()
        forged[order[malicious]] = best.rows
        return forged, best.memory

    def _rehearsal(self, cohort: Cohort, malicious: Bool[Tensor, " n"], defense: Defense, memory: State) -> Rehearsal:
        known = cohort.updates[known_rows(malicious, self.knowledge)]
        material = Material.of(cohort, known, malicious)
        if self.knowledge == "partial":
            cohort = replace(cohort, updates=_imagined(cohort, malicious))
        if cohort.trusted_data is not None:
            cohort = replace(cohort, trusted_data=Remembering(cohort.trusted_data, cohort.params))
        return Rehearsal(cohort, malicious, defense, memory, known.mean(dim=0), material)


def _searched(play: Callable[[Forgery], Trial], trials: int, stop_at_damage: float) -> Trial:
    """The most harmful of so many, or the first that does enough; among equals the first: nobody lies in vain."""
    best: dict[str, Trial] = {}  # by heading: what is second at first may have more room around it
    for trial in map(play, (NOTHING, *GRID)[:trials]):
        if trial.damage >= stop_at_damage:
            return trial
        best[trial.forgery.heading] = max(best.get(trial.forgery.heading, trial), trial, key=_damage)
    starts = sorted(best.values(), key=_damage, reverse=True)[:STARTS]
    left = max(0, trials - 1 - len(GRID))
    shares = [left // STARTS + (i < left % STARTS) for i in range(STARTS)]
    return max((_refined(play, start, share) for start, share in zip(starts, shares, strict=False)), key=_damage)


def _refined(play: Callable[[Forgery], Trial], best: Trial, left: int) -> Trial:
    """Steps around it, smaller ones where none leads up."""
    step = 0.5
    while left > 0:
        before = best
        for forgery in islice(before.forgery.neighbors(step), left):
            best, left = max(best, play(forgery), key=_damage), left - 1
        if best is before:
            step /= 2
    return best


def _damage(trial: Trial) -> float:
    return trial.damage


def _imagined(cohort: Cohort, malicious: Bool[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """The cohort with other honest rows: random mixtures of how the attackers' own updates differ from their mean."""
    own = cohort.updates[malicious]
    mean = own.mean(dim=0)
    n_honest, rng = len(cohort) - len(own), generator(cohort.seed, "adaptive")
    mixture = torch.randn(n_honest, len(own), generator=rng, dtype=torch.float64) / max(1, len(own) - 1) ** 0.5
    updates = cohort.updates.clone()
    updates[~malicious] = mean + mixture.to(own) @ (own - mean)
    return updates
