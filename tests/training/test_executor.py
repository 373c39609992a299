"""Clients train as a plain module with torch's own optimizer would, one by one and all at once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cosdefense import ClientHook, Layout
from cosdefense.core import Loss
from cosdefense.training.executor import train_batched, train_clients, train_one_by_one
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import Norm, ResidualBlock, mlp, paper_cnn, small_cnn
from cosdefense.training.task import Task

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "mlp": (lambda: mlp((1, 8, 8), 10), (1, 8, 8)),
    "small-cnn": (lambda: small_cnn((1, 8, 8), 10), (1, 8, 8)),
    "paper-cnn": (lambda: paper_cnn((1, 28, 28), 10), (1, 28, 28)),
    "batch norm": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.BatchNorm1d(16),
            nn.Linear(16, 10),
        ),
        (3, 8, 8),
    ),
}  # fmt: skip


def case(name: str, n: int = 3, steps: int = 3, size: int = 5) -> tuple[nn.Module, Tensor, Tensor]:
    build, shape = MODELS[name]
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(1)
    images = torch.rand(n, steps, size, *shape, generator=rng)
    return build(), images, torch.randint(0, 10, (n, steps, size), generator=rng)


def plain_loop(model: nn.Module, images: Tensor, labels: Tensor, trainer: LocalSGD) -> Tensor:
    """What anybody would write: a copy of the module per client, and torch.optim.SGD."""
    layout = Task.of(model).layout
    updates = []
    for own_images, own_labels in zip(images, labels, strict=True):
        client = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(
            client.parameters(), trainer.lr, trainer.momentum, weight_decay=trainer.weight_decay
        )
        for batch, targets in zip(own_images, own_labels, strict=True):
            optimizer.zero_grad()
            cross_entropy(client(batch), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        updates.append(layout.flatten(client.state_dict()) - layout.flatten(model.state_dict()))
    return torch.stack(updates).detach()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "trainer", [LocalSGD(0.05), LocalSGD(0.05, momentum=0.9, weight_decay=0.01)], ids=["sgd", "all"]
)
def test_both_executors_equal_a_plain_loop(name: str, trainer: LocalSGD) -> None:
    model, images, labels = case(name)
    expected = plain_loop(model, images, labels, trainer)
    task = Task.of(model)
    for execute in (train_one_by_one, train_batched, train_clients):
        found = execute(task, trainer, task.initial(), images, labels)
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=2e-5), (execute.__name__, (found - expected).abs().max())
    assert float(expected.abs().max()) > 1e-3


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_blocks_batched_equal_one_by_one(norm: Norm) -> None:
    torch.manual_seed(0)
    blocks = nn.Conv2d(3, 32, 3), ResidualBlock(32, 32, 1, norm), ResidualBlock(32, 64, 2, norm)
    task = Task.of(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).double())
    rng = torch.Generator().manual_seed(1)
    images = torch.rand(2, 1, 2, 3, 10, 10, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, 10, (2, 1, 2), generator=rng)
    one, other = (f(task, LocalSGD(0.01), task.initial(), images, labels) for f in (train_one_by_one, train_batched))
    assert torch.allclose(one, other, atol=1e-9)
    statistics = one[:, task.layout.n_trainable :]
    assert statistics.shape[1] == (2 * (2 * 32 + 3 * 64) if norm == "batch" else 0)
    assert norm == "group" or float(statistics.abs().max()) > 0.01


def test_frozen_parameters_stay_as_they_are() -> None:
    model, images, labels = case("batch norm")
    model.get_parameter("0.weight").requires_grad_(False)
    expected = plain_loop(model, images, labels, LocalSGD(0.05, weight_decay=0.01))
    task = Task.of(model)
    for execute in (train_one_by_one, train_batched):
        found = execute(task, LocalSGD(0.05, weight_decay=0.01), task.initial(), images, labels)
        assert torch.allclose(found, expected, atol=2e-5)
        assert bool((task.layout.unflatten(found)["0.weight"] == 0).all())


@dataclass(frozen=True)
class Spy(ClientHook):
    """Brightens images, and adds the previous gradient to the parameters."""

    def batch(self, loss: Loss, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images + 0.5, labels

    def step(self, params: Tensor, gradient: Tensor, previous: Tensor | None, layout: Layout, lr: float) -> Tensor:
        return params if previous is None else params + previous


def test_hooks_see_every_batch_and_step() -> None:
    model, images, labels = case("mlp", n=1, steps=2)
    task = Task.of(model)
    start = task.initial()
    first, _ = task.gradient(start, images[0, 0] + 0.5, labels[0, 0])
    middle = start - 0.1 * first
    second, _ = task.gradient(middle, images[0, 1] + 0.5, labels[0, 1])
    expected = middle - 0.1 * second + first - start
    for execute in (train_one_by_one, train_batched):
        found = execute(task, LocalSGD(0.1, hooks=(Spy(),)), start, images, labels)
        assert torch.allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0 and finite, got -1.0"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        LocalSGD(**options)  # type: ignore[arg-type]
