"""Poisoned buffers: only tracked statistics change, and a model that averages them is useless."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cosdefense import Cohort, Layout, get
from cosdefense.attacks import Attack, PoisonedBuffers
from cosdefense.data import load
from cosdefense.simulation.evaluation import evaluate
from cosdefense.training.batches import to_unit_range
from cosdefense.training.executor import train_clients
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.task import Task

LAYOUT = Layout((("w", (2,)), ("norm.running_mean", (1,)), ("norm.running_var", (1,)), ("other.frozen", (1,))), "w", 2)
ROWS = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]])


def test_pinned_shifts() -> None:
    cohort = Cohort.of(ROWS, torch.ones(5), LAYOUT)
    forged, _ = PoisonedBuffers().forge(cohort, torch.tensor([False, True]), None)
    assert forged[1].tolist() == [6, 7, 1008, -11, 10]
    forged, _ = PoisonedBuffers(-5.0, 0.5).forge(cohort, torch.tensor([False, True]), None)
    assert forged[1].tolist() == [6, 7, 3, 9.5, 10]


def test_no_filter_sees_it() -> None:
    """All honest but for the buffers: the verdict on the weights is that of the honest round."""
    rng = torch.Generator().manual_seed(0)
    cohort = Cohort.of(torch.randn(10, 5, generator=rng), torch.ones(5), LAYOUT)
    malicious = torch.arange(10) == 0
    forged, _ = PoisonedBuffers().forge(cohort, malicious, None)
    sent = Cohort.of(torch.where(malicious[:, None], forged, cohort.updates), torch.ones(5), LAYOUT)
    for name in ("multi-krum", "cosdefense", "factions"):
        honest, poisoned = (get(name)(seen, get(name).init())[0] for seen in (cohort, sent))
        assert torch.equal(honest.weights, poisoned.weights)


def test_a_model_without_statistics_is_refused() -> None:
    plain = Cohort.of(torch.ones(2, 2), torch.ones(2), Layout((("w", (2,)),), "w", 2))
    with pytest.raises(ValueError, match=r"needs a model with BatchNorm statistics .*, got w"):
        PoisonedBuffers().forge(plain, torch.tensor([True, False]), None)
    for options in ({"mean_shift": math.inf}, {"variance_shift": math.nan}):
        with pytest.raises(ValueError, match=f"PoisonedBuffers.{next(iter(options))} must be finite"):
            PoisonedBuffers(**options)


@pytest.mark.slow
def test_one_of_five_destroys_a_model_whose_statistics_are_averaged() -> None:
    """The plain mean of what five clients send, one of them malicious, without any server-side rule for buffers."""
    digits = load("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    task = Task.of(model)
    params, order = task.initial(), torch.randperm(1280)
    images, labels = (
        data[order].view(5, 16, 16, *data.shape[1:])
        for data in (to_unit_range(digits.train_inputs), digits.train_targets)
    )
    for _ in range(4):
        updates = train_clients(task, LocalSGD(0.1), params, images, labels)
        cohort = Cohort.of(updates, params, task.layout)
        params = params + updates.mean(dim=0)
    forged, _ = PoisonedBuffers().forge(cohort, torch.arange(5) == 0, None)
    poisoned = params + (forged[0] - updates[0]) / 5
    for where in task.layout.variances:  # as a server would keep it: no variance below zero
        poisoned[where] = poisoned[where].clamp_min(0)
    honest, attacked = (
        evaluate(task, at, digits.test_inputs, digits.test_targets, Attack(), 10).accuracy for at in (params, poisoned)
    )
    assert honest > 0.85
    assert attacked < 0.5
