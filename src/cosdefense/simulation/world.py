"""The clients, their data and the model they train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import TrustedData, derive, generator
from ..data.dataset import Inputs, Owners, Targets
from ..data.partition import Iid, Partition
from ..ops import fraction_of, upload
from ..training.batches import draw_rows, to_unit_range
from ..training.local_sgd import LocalSGD
from ..training.task import Task

Batch = Float[Tensor, "n steps size *_"] | Int[Tensor, "n steps size *_"]  # one row of batches per client


@dataclass(frozen=True, eq=False)
class World:
    """Everything that does not depend on the attack or the defense. `World.of` builds one from inputs and targets."""

    task: Task
    inputs: Inputs  # of all training samples, on the device where training happens
    targets: Targets
    partition: Sequence[Int[Tensor, " _"]]  # the rows that each client owns
    malicious: Bool[Tensor, " clients"]  # the same clients in every round
    n_classes: int  # 0: the targets are values
    trainer: LocalSGD = LocalSGD()
    trusted_data: TrustedData | None = None
    client_ids: tuple[int, ...] = ()  # which of the data's own clients each one is; empty: the data name none

    @classmethod
    def of(
        cls,
        task: Task,
        inputs: Inputs,
        targets: Targets,
        *,
        n_clients: int,
        malicious: float = 0.0,
        partition: Partition = Iid(),
        trainer: LocalSGD = LocalSGD(),
        seed: int = 0,
        n_classes: int | None = None,
        rows: Int[Tensor, " owned"] | None = None,
        owners: Owners | None = None,
    ) -> World:
        """Divide samples among clients and choose the malicious ones at random: `malicious` is their fraction.

        The device of `inputs` and `targets` is where training happens. `rows` are the samples to divide (None: all).
        `owners` is the client of every sample, for the partition `ByClient`. `n_classes` is 0 where targets are values.
        """
        if rows is None:
            rows = torch.arange(len(targets))
        if n_classes is None:
            n_classes = 0 if targets.is_floating_point() else int(targets.max()) + 1
        natural = None if owners is None else owners.cpu()[rows]
        owned = partition(targets.cpu()[rows], n_classes, n_clients, derive(seed, "partition"), natural)
        is_malicious = torch.zeros(n_clients, dtype=torch.bool)
        shuffled = torch.randperm(n_clients, generator=generator(seed, "identities"))
        is_malicious[shuffled[: fraction_of(malicious, n_clients)]] = True
        ids = tuple(int(natural[own[0]]) for own in owned) if natural is not None and partition.keeps_owners else ()
        owned = [rows[own] for own in owned]
        return cls(task, inputs, targets, owned, is_malicious, n_classes, trainer, client_ids=ids)

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
    ) -> tuple[Batch, Batch]:
        """Draw each client's inputs and targets, reshuffled whenever all of its samples have been used."""
        return self.gather(self.draw_rows(clients, steps, size, rng))

    def draw_rows(
        self, clients: Int[Tensor, " n"], steps: int, size: int, rng: torch.Generator
    ) -> Int[Tensor, "n steps size"]:
        """Draw the rows of those samples only, in the memory of the CPU."""
        rows = torch.stack([draw_rows(self.partition[client], steps * size, rng) for client in clients.tolist()])
        return rows.view(len(clients), steps, size)

    def gather(self, rows: Int[Tensor, "n steps size"]) -> tuple[Batch, Batch]:
        """Copy inputs and targets of these rows: 400 kB for a client with 128 images of 28×28."""
        rows = upload(rows, self.targets.device)
        return to_unit_range(self.inputs[rows]), self.targets[rows]
