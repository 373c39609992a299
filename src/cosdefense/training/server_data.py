"""Clean data at the server, for the defenses that cannot do without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import MissingTrustedData, TrustedData, derive, generator, seeded
from .batches import Pixels, draw, pixels
from .executor import train_clients
from .local_sgd import LocalSGD
from .task import Task


@dataclass(frozen=True, eq=False)
class ServerData(TrustedData):
    """Samples that the server holds: its own (`held`), and what each client once `shared` of its data."""

    task: Task
    trainer: LocalSGD  # as the clients train: lr, momentum and so on
    steps: int
    batch: int
    images: Pixels
    labels: Int[Tensor, " m"]
    held: Int[Tensor, " held"]  # rows of the two above
    shared: Mapping[int, Int[Tensor, " _"]] = field(default_factory=dict)  # rows by client

    def update(self, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
        return self._trained([self._own()], ["server"], params, seed)[0]

    @torch.no_grad()
    def predict(self, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
        rows = self._own().to(self.labels.device)
        return self.task.logits(params, pixels(self.images[rows])), self.labels[rows]

    def guides(self, clients: Int[Tensor, " n"], params: Float[Tensor, " d"], seed: int) -> Float[Tensor, "n d"]:
        names = clients.tolist()
        strangers = [client for client in names if client not in self.shared]
        if strangers:
            raise MissingTrustedData(
                "this defense needs a sample of every client's data (in an experiment: data.shared = 10), "
                f"client {strangers[0]} shared none"
            )
        return self._trained([self.shared[client] for client in names], names, params, seed)

    def _own(self) -> Int[Tensor, " held"]:
        if len(self.held) == 0:
            raise MissingTrustedData(
                "this defense needs clean data of the server's own, in an experiment: data.trusted = 100"
            )
        return self.held

    def _trained(self, owned: list[Tensor], names: Sequence[int | str], params: Tensor, seed: int) -> Tensor:
        """One update each, trained as a client trains; the stream is the owner's, so that company changes nothing."""
        size = self.steps * self.batch
        rows = torch.stack(
            [draw(own, size, generator(seed, "trusted", name)) for own, name in zip(owned, names, strict=True)]
        )
        rows = rows.view(len(owned), self.steps, self.batch).to(self.labels.device)
        with seeded(derive(seed, "trusted"), self.labels.device):
            return train_clients(self.task, self.trainer, params, pixels(self.images[rows]), self.labels[rows])
