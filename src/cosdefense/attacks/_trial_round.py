"""A round that an attack simulates: the defense is applied to candidates without changing its state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Cohort, Defense, State, TrustedData
from ..ops import row_norms
from ._candidates import Candidate, CandidateBuilder


@dataclass(frozen=True, eq=False)
class TrialResult:
    """One candidate and its effect on the defense."""

    candidate: Candidate
    rows: Float[Tensor, "m d"]  # what the malicious clients send
    damage: float  # see `TrialRound`
    memory: State  # of the defense, after the round


@dataclass(frozen=True, eq=False)
class TrialRound:
    """The round as the malicious clients know it, which they can repeat with different forged rows.

    The damage is 1 − ⟨combined update, honest mean⟩ / ‖honest mean‖², over the trainable coordinates: 0 for no damage,
    1 if the model does not progress, more if it moves backwards.
    """

    cohort: Cohort
    malicious: Bool[Tensor, " n"]
    defense: Defense
    memory: State  # of the defense, before the round
    mean: Float[Tensor, " d"]  # of the honest updates, or its estimate
    builder: CandidateBuilder

    @cached_property
    def places(self) -> Int[Tensor, " m"]:
        """Of the malicious clients: found once, because that waits for a GPU."""
        return self.malicious.nonzero().flatten()

    @cached_property
    def progress(self) -> HonestProgress:
        return HonestProgress(self.mean[: self.cohort.layout.n_trainable])

    def run(self, candidate: Candidate) -> TrialResult:
        rows = self.builder.build(candidate)
        updates = self.cohort.updates.clone()
        updates[self.places] = rows
        _, verdict, memory = self.defense.run_round(replace(self.cohort, updates=updates), self.memory)
        t = self.cohort.layout.n_trainable
        return TrialResult(candidate, rows, self.progress.compute_damage(verdict.update[:t]), memory)


class HonestProgress:
    """An honest mean that all trials of a round are compared with."""

    def __init__(self, mean: Float[Tensor, " t"]) -> None:
        self._norm = float(row_norms(mean[None]))
        self._direction = mean.double() / self._norm

    def compute_damage(self, update: Float[Tensor, " t"], n_rounds: int = 1) -> float:
        """n_rounds − ⟨update, mean⟩ / ‖mean‖²: how much the updates of some rounds fall short of the honest mean."""
        if self._norm == 0:
            return 0.0
        damage = n_rounds - float(update.double() / self._norm @ self._direction)
        return damage if math.isfinite(damage) else -math.inf


def sort_by_client(cohort: Cohort) -> tuple[Cohort, Int[Tensor, " n"]]:
    """The cohort in the order of its clients, so that the order of rows changes not a single bit of a trial."""
    order = cohort.clients.argsort()
    updates, clients, weights = cohort.updates[order], cohort.clients[order], cohort.weights[order]
    return replace(cohort, updates=updates, clients=clients, weights=weights), order


class CachedTrustedData(TrustedData):
    """Server data that computes an answer about the global model once: all trials of a round ask the same."""

    def __init__(self, data: TrustedData, params: Float[Tensor, " d"]) -> None:
        self._data, self._params, self._answers = data, params, dict[object, Tensor]()

    def update(self, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
        return self._get(params, ("update", seed), lambda: self._data.update(params, seed))

    def predict(self, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
        return self._data.predict(params)

    def predict_random(
        self, params: Float[Tensor, " d"], updates: Float[Tensor, "k d"], n: int, seed: int
    ) -> Float[Tensor, "1+k n c"]:
        return self._data.predict_random(params, updates, n, seed)

    def guides(self, clients: Int[Tensor, " n"], params: Float[Tensor, " d"], seed: int) -> Float[Tensor, "n d"]:
        key = ("guides", seed, *clients.tolist())
        return self._get(params, key, lambda: self._data.guides(clients, params, seed))

    def _get(self, params: Float[Tensor, " d"], key: object, compute: Callable[[], Tensor]) -> Tensor:
        if params is not self._params:
            return compute()
        if key not in self._answers:
            self._answers[key] = compute()
        return torch.clone(self._answers[key])
