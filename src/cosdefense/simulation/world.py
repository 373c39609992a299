"""The clients, their data and the model they train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import TrustedData, derive, generator
from ..data.partition import Iid, Partition
from ..ops import fraction_of
from ..training.batches import Images, draw_rows, to_unit_range
from ..training.local_sgd import LocalSGD
from ..training.task import Task


@dataclass(frozen=True, eq=False)
class World:
    """Everything that does not depend on the attack or the defense. `World.of` builds one from images and labels."""

    task: Task
    images: Images  # all training images, on the device where training happens
    labels: Int[Tensor, " m"]
    partition: Sequence[Int[Tensor, " _"]]  # the rows that each client owns
    malicious: Bool[Tensor, " clients"]  # the same clients in every round
    n_classes: int
    trainer: LocalSGD = LocalSGD()
    trusted_data: TrustedData | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        images: Images,
        labels: Int[Tensor, " m"],
        *,
        n_clients: int,
        malicious: float = 0.0,
        partition: Partition = Iid(),
        trainer: LocalSGD = LocalSGD(),
        seed: int = 0,
        n_classes: int | None = None,
        rows: Int[Tensor, " owned"] | None = None,
    ) -> World:
        """Divide samples among clients and choose the malicious ones at random: `malicious` is their fraction.

        The device of `images` and `labels` is where training happens. `rows` are the samples to divide (None: all).
        """
        if rows is None:
            rows = torch.arange(len(labels))
        n_classes = int(labels.max()) + 1 if n_classes is None else n_classes
        owned = partition(labels.cpu()[rows], n_classes, n_clients, derive(seed, "partition"))
        is_malicious = torch.zeros(n_clients, dtype=torch.bool)
        shuffled = torch.randperm(n_clients, generator=generator(seed, "identities"))
        is_malicious[shuffled[: fraction_of(malicious, n_clients)]] = True
        return cls(task, images, labels, [rows[own] for own in owned], is_malicious, n_classes, trainer)

    def sample_clients(self, n: int, rng: torch.Generator) -> Int[Tensor, " n"]:
        """Choose who takes part: uniformly without replacement, repeated while all of them are malicious."""
        n_clients = len(self.partition)
        if not 1 <= n <= n_clients:
            raise ValueError(f"1 to {n_clients} clients can be sampled, not {n}")
        clients = torch.randperm(n_clients, generator=rng)[:n]
        is_avoidable = not bool(self.malicious.all()) and n <= int(self.malicious.sum())
        while is_avoidable and bool(self.malicious[clients].all()):
            clients = torch.randperm(n_clients, generator=rng)[:n]
        return clients

    def draw_batches(
        self, clients: Int[Tensor, " n"], steps: int, size: int, rng: torch.Generator
    ) -> tuple[Float[Tensor, "n steps size *shape"], Int[Tensor, "n steps size"]]:
        """Draw each client's images and labels, reshuffled whenever all of its samples have been used."""
        return self.gather(self.draw_rows(clients, steps, size, rng))

    def draw_rows(
        self, clients: Int[Tensor, " n"], steps: int, size: int, rng: torch.Generator
    ) -> Int[Tensor, "n steps size"]:
        """Draw the rows of those samples only."""
        rows = torch.stack([draw_rows(self.partition[client], steps * size, rng) for client in clients.tolist()])
        return rows.view(len(clients), steps, size).to(self.labels.device)

    def gather(
        self, rows: Int[Tensor, "n steps size"]
    ) -> tuple[Float[Tensor, "n steps size *shape"], Int[Tensor, "n steps size"]]:
        """Copy images and labels of these rows: 400 kB for a client with 128 images of 28×28."""
        return to_unit_range(self.images[rows]), self.labels[rows]
