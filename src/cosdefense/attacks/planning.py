"""Planning: search over schedules of forged updates for several rounds, against what the defense remembers.

Designed for this project. The adaptive attack is greedy: it looks for the most damage in the present round. This one
also considers rounds that do no damage, or less, but change what the defense remembers so that a later round does more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float
from torch import Tensor

from ..aggregators import Mean
from ..core import Cohort, Defense, State
from ._candidates import CANDIDATE_GRID
from ._defense_search import DefenseSearch
from ._forgeries import STANDARD_FORGERIES, Forgery
from ._local_search import get_damage, refine
from ._schedules import ImaginedRounds, ScheduleTrial
from ._trial_round import CachedTrustedData, sort_by_client

N_STARTS = 3  # the forgeries around which the greedy search continues
N_STRIKES = 2  # the forgeries of the greedy search with which schedules end
# What the greedy search may not find, because a defense rejects it until it was prepared.
MORE_STRIKES = tuple(STANDARD_FORGERIES[name] for name in ("inner product × 5", "inner product"))
PREPARATIONS = tuple(
    STANDARD_FORGERIES[name]
    for name in (
        *("honest", "zero updates", "inner product", "sign flip", "camouflage", "mimic"),
        *("noise", "noise camouflage", "noise camouflage, strength 2"),
    )
)
FORGERIES = (*STANDARD_FORGERIES.values(), *map(Forgery, CANDIDATE_GRID))


@dataclass(frozen=True)
class Planning(DefenseSearch):
    """All malicious clients send the first forgery of the most damaging schedule over `horizon` rounds.

    The attack knows the honest updates of the round, the defense and, in the simulator, its memory. It runs the defense
    on rounds to come, in which the same clients take part and honest clients pull the model back by `curvature` times
    its displacement. Damage is how much the model then falls short of one honest mean per round, along that mean.

    Half of the trials go to a greedy search, in one round: forgeries of all known kinds (honest, zero, reversed,
    shifted, copied and noisy updates, also mixed), the grid of the adaptive attack, and a local search around the best.
    The other half go to schedules that prepare for some rounds, with one of nine known kinds, and then repeat one of
    the best forgeries or a plain reversed mean. In the next round the attack plans again. Against a defense without
    memory all trials go to the greedy search.

    Args:
        defense: The defense to search against. None: the server's defense in the simulator, elsewhere the plain mean.
        trials: How many rounds of the defense are run per round, at least 2.
        horizon: How many rounds a schedule has, at least 1.
        curvature: By what share of a displacement honest updates change in the next round. 0: they do not change.
    """

    trials: int = 150
    horizon: int = 4
    curvature: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("trials", 2), ("horizon", 1), ("curvature", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"Planning.{name} must be at least {least} and finite, got {getattr(self, name)}")

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        sorted_, order = sort_by_client(cohort)
        if cohort.trusted_data is not None:
            sorted_ = replace(sorted_, trusted_data=CachedTrustedData(cohort.trusted_data, cohort.params))
        defense = self.defense or Defense((), Mean())
        memory = defense.init() if state is None else state
        rounds = ImaginedRounds(sorted_, malicious[order], defense, memory, self.curvature)
        first = self._search(rounds).candidate
        forged = cohort.updates.clone()
        forged[order[malicious[order]]] = rounds.build_rows(first)
        return forged, rounds.get_memory(first)

    def _search(self, rounds: ImaginedRounds) -> ScheduleTrial:
        plans = self.horizon > 1 and _remembers(rounds.get_memory(FORGERIES[0]))
        greedy = _search_one_round(rounds, self.trials // 2 if plans else self.trials)
        if not plans:
            return greedy[0]
        strikes = dict.fromkeys((*(trial.candidate for trial in greedy[:N_STRIKES]), *MORE_STRIKES))
        schedules = _list_schedules(tuple(strikes), self.horizon)
        best = rounds.run(next(schedules))
        while rounds.n_rounds + self.horizon <= self.trials and (schedule := next(schedules, None)):
            best = max(best, rounds.run(schedule), key=get_damage)
        return best


def _search_one_round(rounds: ImaginedRounds, trials: int) -> list[ScheduleTrial]:
    """The most damaging forgeries in the present round, as schedules of one round. Ties go to the first: honest."""

    def run(forgery: Forgery) -> ScheduleTrial:
        return rounds.run((forgery,))

    starts = sorted(map(run, FORGERIES[:trials]), key=get_damage, reverse=True)[:N_STARTS]
    left = max(0, trials - len(FORGERIES))
    shares = [left // N_STARTS + (i < left % N_STARTS) for i in range(N_STARTS)]
    refined = [refine(run, start, share) for start, share in zip(starts, shares, strict=False)]
    return sorted(refined, key=get_damage, reverse=True)


def _list_schedules(strikes: tuple[Forgery, ...], horizon: int) -> Iterator[tuple[Forgery, ...]]:
    """First those that strike at once, then those that prepare: for half of the rounds, then for more and fewer."""
    for strike in strikes:
        yield (strike,) * horizon
    for n_prepare in sorted(range(1, horizon), key=lambda n: abs(n - horizon / 2)):
        for preparation in PREPARATIONS:
            for strike in strikes:
                yield (preparation,) * n_prepare + (strike,) * (horizon - n_prepare)


def _remembers(memory: State) -> bool:
    return any(map(_remembers, memory)) if isinstance(memory, tuple) else memory is not None
