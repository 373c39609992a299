"""A small world that trains in a second, for tests of the whole."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from cosdefense.data import load
from cosdefense.data.partition import LabelSkew
from cosdefense.simulation.world import World
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import mlp, small_cnn
from cosdefense.training.server_data import ServerData
from cosdefense.training.task import Task

TINY = """
name = "tiny"
[data]
dataset = "digits"
clients = 20
[model]
name = "mlp"
[training]
rounds = 8
sampled = 5
batch = 4
evaluate_every = 4
[[attacks]]
name = "noise"
"""  # a grid without its defenses, for tests of the commands


def digits_world(
    seed: int = 0,
    n_clients: int = 50,
    malicious: float = 0.3,
    lr: float = 0.1,
    trusted: int = 0,
    shared: int = 0,
    q: float = 0.5,
    model: nn.Module | None = None,
) -> World:
    """Fifty clients with 28 digits each; `trusted` of the training set go to the server, `shared` of each client's.

    The model is a small CNN if none is given.
    """
    digits = load("digits")
    torch.manual_seed(seed)
    is_malicious = torch.zeros(n_clients, dtype=torch.bool)
    is_malicious[torch.randperm(n_clients)[: round(malicious * n_clients)]] = True
    held, free = torch.arange(trusted), torch.arange(trusted, len(digits.train_targets))
    owned = LabelSkew(q)(digits.train_targets[free], 10, n_clients, seed)
    world = World(
        task=Task.of(model or small_cnn((1, 8, 8), 10, width=8), mean=digits.mean, std=digits.std),
        inputs=digits.train_inputs,
        targets=digits.train_targets,
        partition=[free[own] for own in owned],
        malicious=is_malicious,
        n_classes=10,
        trainer=LocalSGD(lr),
    )
    samples = {client: own[:shared] for client, own in enumerate(world.partition)} if shared else {}
    server = ServerData(world.task, world.trainer, 1, 8, world.inputs, world.targets, held, samples)
    return replace(world, trusted_data=server)


def mlp_world(**options: float) -> World:
    """The same with one hidden layer instead of convolutions, which trains in half the time."""
    torch.manual_seed(int(options.get("seed", 0)))
    return digits_world(model=mlp((1, 8, 8), 10), **options)  # type: ignore[arg-type]
