"""The clients, their data and the model they train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import TrustedData
from ..training.batches import Pixels, draw, pixels
from ..training.local_sgd import LocalSGD
from ..training.task import Task


@dataclass(frozen=True, eq=False)
class World:
    """Everything that is true whether or not anyone attacks or defends."""

    task: Task
    images: Pixels  # all training images, once, on the device where training happens
    labels: Int[Tensor, " m"]
    partition: Sequence[Int[Tensor, " _"]]  # the rows each client owns
    malicious: Bool[Tensor, " clients"]  # fixed identities
    n_classes: int
    trainer: LocalSGD = LocalSGD()
    trusted_data: TrustedData | None = None

    def sample(self, n: int, rng: torch.Generator) -> Int[Tensor, " n"]:
        """Who takes part: uniformly without replacement, drawn again while all of them are malicious."""
        n_clients = len(self.partition)
        if not 1 <= n <= n_clients:
            raise ValueError(f"1 to {n_clients} clients can be sampled, not {n}")
        clients = torch.randperm(n_clients, generator=rng)[:n]
        avoidable = not bool(self.malicious.all()) and n <= int(self.malicious.sum())
        while avoidable and bool(self.malicious[clients].all()):
            clients = torch.randperm(n_clients, generator=rng)[:n]
        return clients

    def batches(
        self, clients: Int[Tensor, " n"], steps: int, size: int, rng: torch.Generator
    ) -> tuple[Float[Tensor, "n steps size *shape"], Int[Tensor, "n steps size"]]:
        """Every client's own samples, reshuffled whenever they have all been used."""
        return self.gathered(self.drawn(clients, steps, size, rng))

    def drawn(
        self, clients: Int[Tensor, " n"], steps: int, size: int, rng: torch.Generator
    ) -> Int[Tensor, "n steps size"]:
        """Which samples those are."""
        rows = torch.stack([draw(self.partition[client], steps * size, rng) for client in clients.tolist()])
        return rows.view(len(clients), steps, size).to(self.labels.device)

    def gathered(
        self, rows: Int[Tensor, "n steps size"]
    ) -> tuple[Float[Tensor, "n steps size *shape"], Int[Tensor, "n steps size"]]:
        """The samples themselves: 400 kB for a client with 128 images of 28×28."""
        return pixels(self.images[rows]), self.labels[rows]
