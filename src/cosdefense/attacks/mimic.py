"""Mimic: all malicious clients copy one honest client, so that its data are over-represented.

Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR 2022.
https://arxiv.org/abs/2006.09365

In the paper, a warm-up determines which client to copy: the one that lies farthest out along z, the direction of the
largest variance between clients. A power iteration with one step per round estimates z, with the authors'
normalization: z ← unit(t · z + unit(Σ (u − mean) ⟨u − mean, z⟩)), so that the scale of the updates does not matter.
Two things differ from the authors' code. They copy the client with the largest ⟨u, z⟩ in the last round of the
warm-up; here the projections of a client are averaged over the rounds in which it took part, and the largest absolute
value counts, because the sign of z is arbitrary. And where clients are sampled and the client to copy is absent, the
next one in the order is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import ClientTable, Cohort, State, generator
from ._geometry import normalize
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class MimicState:
    """What the malicious clients have observed so far, over the trainable coordinates, in float64."""

    rounds: int
    mean: Float[Tensor, " t"]  # of all known updates so far
    direction: Float[Tensor, " t"]  # z, the estimated direction of the largest variance between clients
    projections: ClientTable  # by client: the sum of ⟨u, z⟩ and the number of rounds


@dataclass(frozen=True)
class Mimic(Attack):
    """All malicious clients send the update of the client with the largest |mean ⟨u, z⟩|, buffers included.

    After the warm-up the estimates are final. If all clients take part in every round, the same one is copied always.

    Args:
        knowledge: "full": an honest client is copied. "partial": one of the malicious clients, trained honestly.
        warm_up: The number of rounds in which z is estimated. Clients are copied in these rounds too.
    """

    knowledge: Knowledge = "full"
    warm_up: int = 20

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if self.warm_up < 1:
            raise ValueError(f"Mimic.warm_up must be at least 1, got {self.warm_up}")

    def init(self) -> MimicState:
        empty = torch.empty(0, dtype=torch.float64)
        return MimicState(0, empty, empty, ClientTable.empty())

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        known = cohort.only(known_rows(malicious, self.knowledge))
        if not len(known):
            return cohort.updates, state
        if state.rounds < self.warm_up:
            state = _observe_round(known, state)
        row = _select_client(known.clients, state.projections)
        return known.updates[row].expand_as(cohort.updates), state


def _observe_round(known: Cohort, before: MimicState) -> MimicState:
    """Update the estimates: one step of the power iteration, then the projection of every client on z."""
    rows, t = known.trainable().double(), before.rounds
    first = t == 0
    mean = rows.mean(dim=0) if first else (t * before.mean + rows.mean(dim=0)) / (t + 1)
    direction = normalize(_draw_start(known.seed, rows)) if first else before.direction
    offsets = rows - mean
    step = normalize(offsets.T @ (offsets @ direction))
    if bool(step.any()):  # else all clients sent the same
        direction = normalize(step if first else t * direction + step)
    projections = rows @ direction
    zeros = torch.zeros(len(rows), 2, dtype=torch.float64).to(rows)
    sums = before.projections.lookup(known.clients, default=zeros)
    sums = sums + torch.stack([projections, torch.ones_like(projections)], dim=1)
    return MimicState(t + 1, mean, direction, before.projections.with_rows(known.clients, sums))


def _draw_start(seed: int, rows: Float[Tensor, "m t"]) -> Float[Tensor, " t"]:
    """Where the power iteration starts. A CPU and a GPU draw different numbers."""
    rng = generator(seed, "mimic", device=rows.device)
    return torch.randn(rows.shape[1], generator=rng, dtype=torch.float64, device=rows.device)


def _select_client(clients: Int[Tensor, " m"], projections: ClientTable) -> int:
    """Return the row of the client to copy. Ties go to the lowest identity, so that the order of rows is irrelevant."""
    default = torch.tensor([0.0, 1.0], dtype=torch.float64, device=clients.device).expand(len(clients), 2)
    sums = projections.lookup(clients, default=default)
    distances = (sums[:, 0] / sums[:, 1]).abs()
    return min(range(len(clients)), key=lambda i: (-float(distances[i]), int(clients[i])))
