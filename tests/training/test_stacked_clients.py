"""The first step of all clients as one computation, compared with each client's own."""

import pytest
import torch
from torch import nn

from cosdefense.hooks import FLWBC
from cosdefense.training.executor import to_channels_last
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import mlp, resnet18, small_cnn
from cosdefense.training.stacked_clients import can_stack, make_stackable, train_together
from cosdefense.training.task import Task

SHAPE = (3, 9, 10)
CONVOLUTIONS = nn.Sequential(  # rows and columns differ in everything; pixels that no window reaches
    nn.Conv2d(3, 5, (3, 4), stride=(2, 3), padding=(2, 1)),
    nn.ReLU(),
    nn.Conv2d(5, 4, (2, 3), stride=(2, 1), padding=(0, 1), bias=False),
    nn.Flatten(),
    nn.Linear(4 * 3 * 3, 10),
)


@pytest.mark.parametrize("model", [CONVOLUTIONS, small_cnn(SHAPE, 10, 4), mlp(SHAPE, 10)])
def test_stacked_clients_train_as_each_does_alone(model: nn.Module) -> None:
    task, trainer = Task.of(model.double(), mean=(0.1, 0.2, 0.3), std=(0.3, 0.4, 0.5)), LocalSGD(0.1, 0.5, 0.01)
    images = to_channels_last(torch.rand(4, 1, 6, *SHAPE, dtype=torch.float64), 3)
    labels = torch.randint(0, 10, (4, 1, 6))
    params = task.initial()
    stacked = train_together(make_stackable(task), trainer, params, images, labels)
    alone = torch.stack([trainer(task, params, images[i], labels[i]) for i in range(4)])
    assert torch.allclose(stacked, alone, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(stacked[0], stacked[1])
    assert {type(layer) for layer in task.training_model.modules()} == {type(layer) for layer in model.modules()}


def test_clients_are_stacked_only_where_their_first_step_is_the_same_computation() -> None:
    task, trainer = Task.of(small_cnn(SHAPE, 10)), LocalSGD()
    assert can_stack(task, trainer, n_steps=1)
    assert not can_stack(task, trainer, n_steps=2)  # from then on parameters differ
    assert not can_stack(task, LocalSGD(hooks=(FLWBC(),)), n_steps=1)
    for other in (nn.Dropout(), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1, groups=3), nn.Conv2d(3, 3, 3, padding="same")):
        assert not can_stack(Task.of(nn.Sequential(other, nn.Flatten(), nn.Linear(270, 10))), trainer, n_steps=1)
    assert not can_stack(Task.of(resnet18((3, 32, 32), 10)), trainer, n_steps=1)
