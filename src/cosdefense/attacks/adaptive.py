"""Adaptive: try forged updates on the server's defense and send those that do most damage.

Attacks that optimize against the defense they face are the standard of evaluation since Tramèr, Carlini, Brendel,
Madry. On Adaptive Attacks to Adversarial Example Defenses. NeurIPS 2020. https://arxiv.org/abs/2002.08347
The search was designed for this project. Line searches against one known rule are in Fang et al. (USENIX Security
2020), Shejwalkar and Houmansadr (NDSS 2021), and in byzfl.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..aggregators import Mean
from ..core import Cohort, Defense, State, generator
from ._candidates import CANDIDATE_GRID, HONEST_CANDIDATE, Candidate, CandidateBuilder
from ._defense_search import DefenseSearch
from ._knowledge import Knowledge, check_choice, known_rows
from ._local_search import get_damage, refine
from ._trial_round import CachedTrustedData, TrialResult, TrialRound, sort_by_client
from .attack import Attack

N_STARTS = 3  # the directions of the grid around which the search continues


@dataclass(frozen=True)
class Adaptive(DefenseSearch):
    """All malicious clients send base_weight · base + magnitude · direction, the most damaging of all candidates tried.

    Damage is how much the combined update of the defense falls short of the honest mean, along that mean and relative
    to its norm. The base is the honest mean or every client's own update. The directions are: the reversed honest mean,
    the same made orthogonal to the global model in every layer, its sign, its sign times the standard deviation of the
    clients, its last layer only, and the same rotated until its mean cosine similarity with honest updates is
    positive. A grid of 72 candidates comes first, then a local search around the best three, with magnitudes of up to
    25 norms of the mean. The search is greedy: it ignores the effect on later rounds through the defense's memory.

    With full knowledge the search uses the real round: the honest updates, the server's data if it has any, and, in
    the simulator, the defense's memory. Only the random numbers of the defense are unknown. With partial knowledge the
    honest updates are drawn with the mean and the covariance of the malicious clients' own updates, and the defense's
    memory is estimated by simulating all rounds of the attack with them. The memory is estimated as well if `defense`
    is not the server's defense.

    Args:
        defense: The defense to search against. None: the server's defense in the simulator, elsewhere the plain mean.
        knowledge: "full": the honest updates are known. "partial": they are drawn at random as described above.
        trials: How many candidates are tried per round, at least 2. The first is the honest update.
        stop_at_damage: The search stops at the first candidate of the grid with this damage: 1 stops the model, 2
            reverses its progress. None: all trials are used.
    """

    knowledge: Knowledge = "full"
    trials: int = 150
    stop_at_damage: float | None = None

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if self.trials < 2:  # the honest update and inner product manipulation
            raise ValueError(f"Adaptive.trials must be at least 2, got {self.trials}")
        if self.stop_at_damage is not None and not self.stop_at_damage > 0:
            raise ValueError(f"Adaptive.stop_at_damage must be positive, got {self.stop_at_damage}")

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        return super().with_defense(defense, memory if self.knowledge == "full" else state, state)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        sorted_, order = sort_by_client(cohort)
        malicious = malicious[order]
        defense = self.defense or Defense((), Mean())
        trial_round = self._build_round(sorted_, malicious, defense, defense.init() if state is None else state)
        best = _search(trial_round.run, self.trials, math.inf if self.stop_at_damage is None else self.stop_at_damage)
        forged = cohort.updates.clone()
        forged[order[malicious]] = best.rows
        return forged, best.memory

    def _build_round(
        self, cohort: Cohort, malicious: Bool[Tensor, " n"], defense: Defense, memory: State
    ) -> TrialRound:
        known = cohort.updates[known_rows(malicious, self.knowledge)]
        builder = CandidateBuilder.from_cohort(cohort, known, malicious)
        if self.knowledge == "partial":
            cohort = replace(cohort, updates=_draw_honest_updates(cohort, malicious))
        if cohort.trusted_data is not None:
            cohort = replace(cohort, trusted_data=CachedTrustedData(cohort.trusted_data, cohort.params))
        return TrialRound(cohort, malicious, defense, memory, known.mean(dim=0), builder)


def _search(run: Callable[[Candidate], TrialResult], trials: int, stop_at_damage: float) -> TrialResult:
    """Return the most damaging candidate, or the first with enough damage. Ties go to the first: the honest update."""
    best: dict[str, TrialResult] = {}  # by direction: one that is second in the grid may be first after refinement
    for trial in map(run, (HONEST_CANDIDATE, *CANDIDATE_GRID)[:trials]):
        if trial.damage >= stop_at_damage:
            return trial
        direction = trial.candidate.direction
        best[direction] = max(best.get(direction, trial), trial, key=get_damage)
    starts = sorted(best.values(), key=get_damage, reverse=True)[:N_STARTS]
    left = max(0, trials - 1 - len(CANDIDATE_GRID))
    shares = [left // N_STARTS + (i < left % N_STARTS) for i in range(N_STARTS)]
    refined = (refine(run, start, share) for start, share in zip(starts, shares, strict=False))
    return max(refined, key=get_damage)


def _draw_honest_updates(cohort: Cohort, malicious: Bool[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Replace the honest rows by random ones with the mean and the covariance of the malicious clients' own updates."""
    own = cohort.updates[malicious]
    mean = own.mean(dim=0)
    n_honest, rng = len(cohort) - len(own), generator(cohort.seed, "adaptive")
    mixture = torch.randn(n_honest, len(own), generator=rng, dtype=torch.float64) / max(1, len(own) - 1) ** 0.5
    updates = cohort.updates.clone()
    updates[~malicious] = mean + mixture.to(own) @ (own - mean)
    return updates
