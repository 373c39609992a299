"""Clean data at the server, for the defenses that need some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import MissingTrustedData, TrustedData, derive, generator, use_seed
from ..core.sample_checks import are_pixels
from ..data.dataset import Inputs, Targets
from .batches import draw_rows, to_unit_range
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
    inputs: Inputs
    targets: Targets
    held: Int[Tensor, " held"]  # rows of `inputs` and `targets`
    shared: Mapping[int, Int[Tensor, " _"]] = field(default_factory=dict)  # rows, by client

    def update(self, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
        return self._train([self._held_rows()], ["server"], params, seed)[0]

    @torch.no_grad()
    def predict(self, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
        rows = self._held_rows().to(self.targets.device)
        outputs, targets = self.task.logits(params, to_unit_range(self.inputs[rows])), self.targets[rows]
        if targets.is_floating_point():
            raise MissingTrustedData(
                "this defense needs a model that answers with classes, found targets that are values"
            )
        if outputs.numel() == targets.numel():  # one logit of two classes
            outputs = torch.stack([torch.zeros_like(outputs), outputs], dim=1)
        if outputs.ndim > 2:
            outputs = outputs.reshape(len(targets), -1, targets[0].numel()).transpose(1, 2).flatten(0, 1)
        return outputs.reshape(targets.numel(), -1), targets.flatten()

    @torch.no_grad()
    def predict_random(
        self, params: Float[Tensor, " d"], updates: Float[Tensor, "k d"], n: int, seed: int
    ) -> Float[Tensor, "1+k n c"]:
        if not are_pixels(self.inputs):
            found = f"samples of shape {tuple(self.inputs.shape[1:])} of {self.inputs.dtype}"
            raise MissingTrustedData(f"this defense runs models on random images with pixels in [0, 1], found {found}")
        rng, shape = generator(seed, "random images"), self.inputs.shape[1:]
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
        rows = rows.view(len(rows_of), self.steps, self.batch).to(self.targets.device)
        with use_seed(derive(seed, "trusted"), self.targets.device):
            return train_clients(self.task, self.trainer, params, to_unit_range(self.inputs[rows]), self.targets[rows])
