"""Clean data at the server, for the defenses that need some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import MissingTrustedData, TrustedData, derive, generator, use_seed
from .batches import Images, draw_rows, to_unit_range
from .executor import train_clients
from .local_sgd import LocalSGD
from .task import Task

RANDOM_BATCH = 1000  # random images at a time


@dataclass(frozen=True, eq=False)
class ServerData(TrustedData):
    """Samples at the server: those it holds itself (`held`), and those each client `shared` with it in advance."""

    task: Task
    trainer: LocalSGD  # how clients train: lr, momentum and so on
    steps: int
    batch: int
    images: Images
    labels: Int[Tensor, " m"]
    held: Int[Tensor, " held"]  # rows of `images` and `labels`
    shared: Mapping[int, Int[Tensor, " _"]] = field(default_factory=dict)  # rows, by client

    def update(self, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
        return self._train([self._held_rows()], ["server"], params, seed)[0]

    @torch.no_grad()
    def predict(self, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
        rows = self._held_rows().to(self.labels.device)
        return self.task.logits(params, to_unit_range(self.images[rows])), self.labels[rows]

    @torch.no_grad()
    def predict_random(
        self, params: Float[Tensor, " d"], updates: Float[Tensor, "k d"], n: int, seed: int
    ) -> Float[Tensor, "1+k n c"]:
        rng, shape = generator(seed, "random images"), self.images.shape[1:]
        sizes = [min(RANDOM_BATCH, n - start) for start in range(0, n, RANDOM_BATCH)]
        answers = []
        for size in sizes:  # each image is drawn once: that takes longer than a small model's answer
            images = torch.rand(size, *shape, generator=rng).to(params)
            models = chain([params], (params + update for update in updates))  # one after the other: they are large
            answers.append(torch.stack([self.task.logits(model, images) for model in models]))
        return torch.cat(answers, dim=1)

    def guides(self, clients: Int[Tensor, " n"], params: Float[Tensor, " d"], seed: int) -> Float[Tensor, "n d"]:
        names = clients.tolist()
        without_samples = [client for client in names if client not in self.shared]
        if without_samples:
            raise MissingTrustedData(
                "this defense needs a sample of every client's data (in an experiment: data.shared = 10), "
                f"client {without_samples[0]} shared none"
            )
        return self._train([self.shared[client] for client in names], names, params, seed)

    def _held_rows(self) -> Int[Tensor, " held"]:
        if len(self.held) == 0:
            raise MissingTrustedData(
                "this defense needs clean data at the server, in an experiment: data.trusted = 100"
            )
        return self.held

    def _train(self, rows_of: list[Tensor], names: Sequence[int | str], params: Tensor, seed: int) -> Tensor:
        """Train one update per set of rows, as a client trains.

        Each random stream depends on its owner's name only, so an update does not depend on which others are trained.
        """
        size = self.steps * self.batch
        rows = torch.stack(
            [draw_rows(own, size, generator(seed, "trusted", name)) for own, name in zip(rows_of, names, strict=True)]
        )
        rows = rows.view(len(rows_of), self.steps, self.batch).to(self.labels.device)
        with use_seed(derive(seed, "trusted"), self.labels.device):
            return train_clients(self.task, self.trainer, params, to_unit_range(self.images[rows]), self.labels[rows])
