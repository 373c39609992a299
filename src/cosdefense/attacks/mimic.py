"""Mimic: all attackers copy one honest client, so that its data count more than anybody else's.

Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR 2022.
https://arxiv.org/abs/2006.09365

Which client to copy, the paper learns in a warm-up: the one that lies farthest out along z, the direction in which
clients differ most, found by a power iteration with one step a round. Three things are ours. The sum behind z is
remembered as it is, where the paper's recursion (from memory, not confirmed) mixes a vector of length one with products
of updates, so that the scale of the updates decides how fast it learns. What was seen of a client along z is averaged
over the rounds in which it took part. And where clients are sampled and the favorite stays away, the next is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import ClientTable, Cohort, State, generator
from ..ops import row_norms
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class Observed:
    """What the attackers have learned about the others, over the weights, in float64."""

    rounds: int
    mean: Float[Tensor, " t"]  # of all updates so far
    spread: Float[Tensor, " t"]  # Σ (u − mean) ⟨u − mean, z⟩, averaged over rounds; z points along it
    outlying: ClientTable  # by client: the sum of ⟨u, z⟩, and of how many rounds


@dataclass(frozen=True)
class Mimic(Attack):
    """All attackers send the update of the client with the largest |mean ⟨u, z⟩|, statistics included.

    After the warm-up nothing is learned any more: with everybody in every round it is always the same one.
    """

    knowledge: Knowledge = "full"  # with "partial" they copy one of their own, trained honestly
    warm_up: int = 20  # rounds in which they watch; they copy meanwhile, going by what they know so far

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if self.warm_up < 1:
            raise ValueError(f"Mimic.warm_up must be at least 1, got {self.warm_up}")

    def init(self) -> Observed:
        nothing = torch.empty(0, dtype=torch.float64)
        return Observed(0, nothing, nothing, ClientTable.empty())

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        seen = cohort.only(known_rows(malicious, self.knowledge))
        if not len(seen):
            return cohort.updates, state
        if state.rounds < self.warm_up:
            state = _watched(seen, state)
        favorite = _farthest_out(seen.clients, state.outlying)
        return seen.updates[favorite].expand_as(cohort.updates), state


def _watched(seen: Cohort, before: Observed) -> Observed:
    """One more round: a step of the power iteration, then every client's place along z."""
    rows, t = seen.trainable().double(), before.rounds
    first = t == 0
    mean = rows.mean(dim=0) if first else (t * before.mean + rows.mean(dim=0)) / (t + 1)
    start = torch.randn(rows.shape[1], generator=generator(seen.seed, "mimic"), dtype=torch.float64).to(rows.device)
    spread = torch.zeros_like(mean) if first else before.spread
    offsets = rows - mean
    spread = (t * spread + offsets.T @ (offsets @ _unit(spread, start))) / (t + 1)
    places = rows @ _unit(spread, start)
    known = before.outlying.lookup(seen.clients, default=torch.zeros(len(rows), 2, dtype=torch.float64).to(rows))
    counted = known + torch.stack([places, torch.ones_like(places)], dim=1)
    return Observed(t + 1, mean, spread, before.outlying.updated(seen.clients, counted))


def _unit(vector: Float[Tensor, " t"], start: Float[Tensor, " t"]) -> Float[Tensor, " t"]:
    """Its direction; where it has none yet, that of a random start."""
    vector = vector if bool(vector.any()) else start
    return vector / row_norms(vector[None])


def _farthest_out(clients: Int[Tensor, " m"], outlying: ClientTable) -> int:
    """The row of the client to copy; among equals the lowest identity, so that order does not matter."""
    nothing = torch.tensor([0.0, 1.0], dtype=torch.float64, device=clients.device).expand(len(clients), 2)
    found = outlying.lookup(clients, default=nothing)
    places = (found[:, 0] / found[:, 1]).abs()
    return min(range(len(clients)), key=lambda i: (-float(places[i]), int(clients[i])))
