"""Constrain and scale: the projection by hand, in every local step, and what the backdoor does to a plain mean."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cosdefense import Cohort, Layout
from cosdefense.attacks import Attack, Backdoor, ConstrainAndScale, TrainingPlan
from cosdefense.attacks.constrain_and_scale import StayInBall
from cosdefense.core import generator
from cosdefense.training.executor import train_batched, train_clients
from doubles import weights_only
from worlds import digits_world


def test_pinned_projection_and_scale() -> None:
    """w = (1, 1), trained to (4, 5), radius 2: (2.2, 2.6), an update of (1.2, 1.6), times 2.5: (3, 4)."""
    cohort = replace(weights_only([[3.0, 4.0]] * 5), params=torch.ones(2, dtype=torch.float64))
    malicious = torch.arange(5) < 2
    forged, _ = ConstrainAndScale(radius=2.0).forge(cohort, malicious, None)
    assert forged[malicious].flatten().tolist() == pytest.approx([3, 4] * 2)
    unscaled, _ = ConstrainAndScale(radius=2.0, scale=1.0).forge(cohort, malicious, None)
    assert unscaled[0].tolist() == pytest.approx([1.2, 1.6])
    far, _ = ConstrainAndScale(radius=50.0, scale=1.0).forge(cohort, malicious, None)
    assert torch.equal(far, cohort.updates)
    hook = StayInBall(torch.ones(2), 2.0)
    layout = Layout((("w", (2,)),), "w", 2)
    assert hook.step(torch.tensor([4.0, 5.0]), torch.zeros(2), None, layout, 0.1).tolist() == pytest.approx([2.2, 2.6])


def test_buffers_are_not_projected() -> None:
    layout = Layout((("w", (1,)), ("norm.running_mean", (1,))), "w", 1)
    cohort = Cohort.of(torch.tensor([[4.0, 100.0]]), torch.zeros(2), layout)
    forged, _ = ConstrainAndScale(radius=2.0).forge(cohort, torch.tensor([True]), None)
    assert forged.tolist() == [[2, 100]]
    hook = StayInBall(torch.zeros(2), 2.0)
    assert hook.step(torch.tensor([4.0, 100.0]), torch.zeros(2), None, layout, 0.1).tolist() == [2, 100]


@pytest.mark.parametrize("train", [train_clients, train_batched])
def test_every_step_is_projected(train: object) -> None:
    """Three steps by hand; and what a single projection at the end would give is something else."""
    world, radius = digits_world(n_clients=10), 0.05
    start = world.task.initial().double()
    images, labels = world.draw_batches(torch.tensor([1]), 3, 6, generator(0, "x"))
    images = images.double()
    plan = ConstrainAndScale(radius=radius, steps=3).plan_training(start, world.task.layout, 1, None)
    assert plan.steps == 3
    trainer = replace(world.trainer, hooks=plan.hooks)
    (update,) = train(world.task, trainer, start, images, labels)  # type: ignore[operator]
    params, free = start, start
    for batch, targets in zip(images[0], labels[0], strict=True):
        params = params - world.trainer.lr * world.task.gradient(params, batch, targets)[0]
        free = free - world.trainer.lr * world.task.gradient(free, batch, targets)[0]
        offset = params - start
        params = start + offset * min(1.0, radius / math.hypot(*offset.tolist()))
    torch.testing.assert_close(update, params - start, rtol=0, atol=1e-9)
    assert float(update.norm()) == pytest.approx(radius)
    late = (free - start) * radius / (free - start).norm()
    assert float((update - late).norm()) > 1e-4


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"ConstrainAndScale.radius must be positive and finite, got 0.0"):
        ConstrainAndScale(radius=0.0)
    with pytest.raises(ValueError, match=r"ConstrainAndScale.size must be at least 1, got 0"):
        ConstrainAndScale(size=0)
    with pytest.raises(ValueError, match=r"Backdoor.steps must be at least 1, got 0"):
        Backdoor(steps=0)
    layout = Layout((("w", (2,)),), "w", 2)
    assert Backdoor(steps=7).plan_training(torch.zeros(2), layout, 1, None) == TrainingPlan(7)
    assert Attack().plan_training(torch.zeros(2), layout, 1, None) == TrainingPlan()
