"""A small world that trains in a second, for tests of the whole."""

from __future__ import annotations

import torch

from cosdefense.client import LocalSGD
from cosdefense.data import load
from cosdefense.data.partition import LabelSkew
from cosdefense.models import small_cnn
from cosdefense.simulation import World
from cosdefense.task import Task


def digits_world(seed: int = 0, n_clients: int = 50, malicious: float = 0.3, lr: float = 0.1) -> World:
    digits = load("digits")
    torch.manual_seed(seed)
    liars = torch.zeros(n_clients, dtype=torch.bool)
    liars[torch.randperm(n_clients)[: round(malicious * n_clients)]] = True
    return World(
        task=Task.of(small_cnn((1, 8, 8), 10, width=8), mean=digits.mean, std=digits.std),
        images=digits.train_images,
        labels=digits.train_labels,
        partition=LabelSkew(0.5)(digits.train_labels, 10, n_clients, seed),
        malicious=liars,
        n_classes=10,
        trainer=LocalSGD(lr),
    )
