"""The task: handwritten digits, a small network, plain SGD."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cosdefense.data.known_datasets import DIGITS_FILE

N_CLASSES = 10
MOMENTUM = 0.9
Data = tuple[Tensor, Tensor]  # images in [0, 1] and labels


def build_network() -> nn.Module:
    """Two convolutions and a linear layer: 6,090 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, N_CLASSES),
    )  # fmt: skip


def _load_digits() -> Data:
    """The images that are installed with cosdefense, in the order of the file."""
    table = np.loadtxt(DIGITS_FILE, delimiter=",")
    images = torch.tensor(table[:, :-1] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return images, torch.tensor(table[:, -1], dtype=torch.int64)


def load_test_set() -> Data:
    """Every fifth image. Only the server has them."""
    images, labels = _load_digits()
    return images[::5], labels[::5]


def load_training_set(partition: int, n_partitions: int) -> Data:
    """The images of one node: half of them from one or two classes, half from all classes. No image is in two sets."""
    images, labels = _load_digits()
    kept = torch.arange(len(labels)) % 5 != 0
    images, labels = images[kept], labels[kept]
    shuffled = np.random.default_rng(0).permutation(len(labels))
    mixed, sorted_by_class = np.array_split(shuffled, 2)
    sorted_by_class = sorted_by_class[np.argsort(labels[sorted_by_class].numpy(), kind="stable")]
    indices = np.concatenate([np.array_split(half, n_partitions)[partition] for half in (mixed, sorted_by_class)])
    return images[indices], labels[indices]


def train(model: nn.Module, data: Data, epochs: int, lr: float, seed: int) -> float:
    """SGD with momentum in batches of 16. Returns the mean loss of the last epoch.

    As `torch.optim.SGD`, which imports PyTorch's compiler: that takes a second for every message.
    """
    images, labels = data
    rng = torch.Generator().manual_seed(seed)
    params = list(model.parameters())
    velocities = [torch.zeros_like(param) for param in params]
    model.train()
    losses: list[float] = []
    for _ in range(epochs):
        losses = []
        for batch in torch.split(torch.randperm(len(labels), generator=rng), 16):
            loss = cross_entropy(model(images[batch]), labels[batch])
            gradients = torch.autograd.grad(loss, params)
            with torch.no_grad():
                for param, velocity, gradient in zip(params, velocities, gradients, strict=True):
                    velocity.mul_(MOMENTUM).add_(gradient)
                    param.sub_(velocity, alpha=lr)
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def measure(model: nn.Module, data: Data) -> tuple[float, float]:
    """Accuracy and loss."""
    images, labels = data
    model.eval()
    logits = model(images)
    return (logits.argmax(dim=1) == labels).float().mean().item(), cross_entropy(logits, labels).item()
