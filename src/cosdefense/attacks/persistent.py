"""Persistent: push against the direction in which honest clients move the model over many rounds.

Designed for this project. In a round of few clients with different data, the mean of the honest updates is mostly
chance, and what the adaptive attack does against it is mostly undone by the next rounds. What honest clients do round
after round is what the model learns. An attack on that direction adds up, and it is also what poisons a defense's
memory of directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..aggregators import Mean
from ..core import Cohort, Defense, State, check_decay
from ..ops import median_of, row_norms
from ._defense_search import DefenseSearch
from ._geometry import draw_unit_vectors, normalize, remove_projection
from ._trial_round import CachedTrustedData, sort_by_client
from .attack import Attack

LENGTHS = (1.0, 0.5, 2.0, 0.25)  # of the reversed direction, in typical norms of honest updates
NOISES = (0.85, 0.0)  # of a client's own noise: rules that look for near-duplicates do not see noisy ones
AGREEMENT = 0.05  # with the running mean of what was sent: rules that remember it take such updates for honest
MODELS = (0.0, 0.1, 0.3)  # of the global model's direction: rules that compare updates with it take them for honest


@dataclass(frozen=True)
class PersistentMemory:
    """The running means of the honest updates and of all that were sent, and what the defense remembers."""

    direction: Float[Tensor, " d"] | None = None
    sent: Float[Tensor, " d"] | None = None
    defense: State = None


@dataclass(frozen=True)
class Persistent(DefenseSearch):
    """Send −length · L · unit(m) + noise · L · v + model · L · unit(w), the most damaging of all combinations tried.

    m is the running mean of the honest means, L the median norm of honest updates, v a random unit vector of the
    client's own and w the global model. Every combination is also tried with the client's own update in the place of
    the noise, and with −m made orthogonal to the running mean of all updates that were sent, up to a cosine of 0.05.
    Damage is how much the combined update of the defense falls short of the honest mean along m. Buffers are those of
    the honest mean.

    The attack knows the honest updates, the defense and, in the simulator, its memory.

    Args:
        defense: The defense to search against. None: the server's defense in the simulator, elsewhere the plain mean.
        trials: How many combinations are tried per round, at least 1. There are 72.
        decay: How much of the running mean is kept from round to round.
    """

    trials: int = 72
    decay: float = 0.95

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"Persistent.trials must be at least 1, got {self.trials}")
        check_decay(self)

    def init(self) -> State:
        return PersistentMemory(defense=super().init())

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        own: PersistentMemory = state
        attack, known = super().with_defense(defense, memory, own.defense)
        return attack, replace(own, defense=known)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        memory: PersistentMemory = state
        if bool(malicious.all()):  # nobody honest to aim at
            return cohort.updates, state
        sorted_, order = sort_by_client(cohort)
        who = malicious[order]
        mean = sorted_.updates[~who].double().mean(dim=0)
        memory = replace(memory, direction=self._average(memory.direction, mean))
        if not bool(who.any()):
            return cohort.updates, replace(memory, sent=self._average(memory.sent, mean))
        if cohort.trusted_data is not None:
            sorted_ = replace(sorted_, trusted_data=CachedTrustedData(cohort.trusted_data, cohort.params))
        rows, remembered = self._search(sorted_, who, mean, memory)
        forged = cohort.updates.clone()
        forged[order[who]] = rows
        sent = sorted_.updates[~who].double().sum(dim=0) + rows.double().sum(dim=0)
        return forged, replace(memory, sent=self._average(memory.sent, sent / len(cohort)), defense=remembered)

    def _average(self, past: Tensor | None, now: Tensor) -> Tensor:
        return now if past is None else torch.lerp(now, past.to(now), self.decay)

    def _search(
        self, cohort: Cohort, malicious: Bool[Tensor, " n"], mean: Tensor, known: PersistentMemory
    ) -> tuple[Float[Tensor, "m d"], State]:
        """The most damaging rows, and what the defense then remembers. Ties go to the first."""
        assert known.direction is not None
        defense, t = self.defense or Defense((), Mean()), cohort.layout.n_trainable
        memory = defense.init() if known.defense is None else known.defense
        axis = normalize(known.direction[:t])
        sent = torch.zeros_like(axis) if known.sent is None else known.sent[:t]
        best: tuple[float, Tensor, State] | None = None
        places = malicious.nonzero().flatten()
        for trainable, _ in zip(_list_rows(cohort, malicious, axis, sent), range(self.trials), strict=False):
            rows = mean.to(cohort.updates.dtype).expand(len(trainable), -1).clone()  # buffers are honest
            rows[:, :t] = trainable.to(rows.dtype)
            updates = cohort.updates.clone()
            updates[places] = rows
            _, verdict, after = defense.run_round(replace(cohort, updates=updates), memory)
            damage = float((mean[:t] - verdict.update[:t].double()) @ axis)  # the honest mean may oppose the direction
            damage = damage if math.isfinite(damage) else -math.inf
            if best is None or damage > best[0]:
                best = damage, rows, after
        assert best is not None  # there is at least one trial
        return best[1], best[2]


def _list_rows(
    cohort: Cohort, malicious: Bool[Tensor, " n"], axis: Float[Tensor, " t"], sent: Float[Tensor, " t"]
) -> Iterator[Float[Tensor, "m t"]]:
    """What the malicious clients may send, without buffers. Those with noise come first."""
    own, honest = cohort.trainable()[malicious].double(), cohort.trainable()[~malicious]
    norm, model = median_of(row_norms(honest).double()), normalize(cohort.params[: cohort.layout.n_trainable].double())
    noise = norm * draw_unit_vectors(cohort, malicious, "persistent")
    hidden = normalize(normalize(remove_projection(-axis, sent)) + AGREEMENT * normalize(sent))
    for length, share, reversed_ in product(LENGTHS, MODELS, (-axis, hidden)):
        pushed = norm * (share * model + length * reversed_)
        for part in NOISES:
            yield pushed + part * noise
        yield pushed + own
