"""A defense that attackers hold in their own hands: what would it make of these rows?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Cohort, Defense, State, TrustedData
from ..ops import row_norms
from ._candidates import Forgery, Material


@dataclass(frozen=True, eq=False)
class Trial:
    """One forgery and what the defense did with it."""

    forgery: Forgery
    rows: Float[Tensor, "m d"]  # as sent
    damage: float  # see `Rehearsal`
    memory: State  # of the defense, afterwards


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The round as the attackers know it, played with their rows in it as often as they like.

    The damage is how far the combined update falls short of the honest mean, along that mean, in its lengths: 0 for
    no damage, 1 for a model that stays as it is, more for one that goes backwards.
    """

    cohort: Cohort
    malicious: Bool[Tensor, " n"]
    defense: Defense
    memory: State  # of the defense, before; a state goes in and comes out, so nothing changes it
    mean: Float[Tensor, " d"]  # the honest mean, as far as it is known
    material: Material

    def play(self, forgery: Forgery) -> Trial:
        rows = self.material.rows(forgery)
        updates = self.cohort.updates.clone()
        updates[self.malicious] = rows
        _, verdict, memory = self.defense.run_round(replace(self.cohort, updates=updates), self.memory)
        return Trial(forgery, rows, self._damage(verdict.update), memory)

    def _damage(self, update: Float[Tensor, " d"]) -> float:
        t = self.cohort.layout.n_trainable
        length = float(row_norms(self.mean[None, :t]))
        if length == 0:
            return 0.0
        along = self.mean[:t].double() / length
        damage = 1 - float(update[:t].double() / length @ along)
        return damage if math.isfinite(damage) else -math.inf


class Remembering(TrustedData):
    """A server's data that answers the same question once: many trials ask about the same global model."""

    def __init__(self, data: TrustedData, params: Float[Tensor, " d"]) -> None:
        self._data, self._params, self._answers = data, params, dict[object, Tensor]()

    def update(self, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
        return self._once(params, ("update", seed), lambda: self._data.update(params, seed))

    def predict(self, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
        return self._data.predict(params)

    def guides(self, clients: Int[Tensor, " n"], params: Float[Tensor, " d"], seed: int) -> Float[Tensor, "n d"]:
        question = ("guides", seed, *clients.tolist())
        return self._once(params, question, lambda: self._data.guides(clients, params, seed))

    def _once(self, params: Float[Tensor, " d"], question: object, ask: Callable[[], Tensor]) -> Tensor:
        if params is not self._params:
            return ask()
        if question not in self._answers:
            self._answers[question] = ask()
        return torch.clone(self._answers[question])
