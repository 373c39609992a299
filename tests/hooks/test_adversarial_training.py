"""Adversarial training: images within reach, where the loss is higher; as a plain loop would find them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cosdefense.hooks import AdversarialTraining
from cosdefense.training.executor import train_batched, train_one_by_one
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import mlp, small_cnn
from cosdefense.training.task import Task

Execute = Callable[[Task, LocalSGD, Tensor, Tensor, Tensor], Tensor]
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp((1, 8, 8), 10),
    "small-cnn": lambda: small_cnn((1, 8, 8), 10),
    "batch norm": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)),
}


def task_of(name: str, *, normalised: bool = False) -> Task:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    return Task.of(model, mean=(0.3,), std=(0.25,)) if normalised else Task.of(model)


def batch_of(*batch: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    images = torch.rand(*batch, 1, 8, 8, generator=rng, dtype=torch.float64)
    images.view(-1)[::5] = 0.0  # black and white pixels: some moves lead out of range
    images.view(-1)[1::5] = 1.0
    return images, torch.randint(0, 10, batch, generator=rng)


def slow_ascent(task: Task, params: Tensor, images: Tensor, labels: Tensor, hook: AdversarialTraining) -> Tensor:
    """Projected gradient ascent with autograd, pixel values clipped twice: to the neighbourhood, to [0, 1]."""
    size = hook.step_size if hook.step_size is not None else 2.5 * hook.epsilon / hook.steps
    low, high = (images - hook.epsilon).clamp_min(0), (images + hook.epsilon).clamp_max(1)
    moved = images.clone()
    for _ in range(hook.steps):
        moved.requires_grad_(True)
        (slope,) = torch.autograd.grad(cross_entropy(task.logits(params, moved), labels), moved)
        moved = torch.minimum(torch.maximum(moved.detach() + size * slope.sign(), low), high)
    return moved


def test_pinned_values() -> None:
    # The loss is Σ (±x): its slope is +1 and −1. ε = 0.1 in two steps of 0.125: 0.5 → 0.6, 0.5 → 0.4 after one step
    # already, cut at ε; 0.95 → 1 and 0.02 → 0, cut at the range.
    images = torch.tensor([[0.5, 0.5, 0.95, 0.02]])
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    moved, labels = AdversarialTraining(0.1, 2).batch(lambda x, _: (x * signs).sum(), images, torch.tensor([3]))
    assert moved[0].tolist() == pytest.approx([0.6, 0.4, 1, 0])
    assert labels.tolist() == [3]
    # One step of 0.03 goes no farther than that.
    moved, _ = AdversarialTraining(0.1, 1, 0.03).batch(lambda x, _: (x * signs).sum(), images, torch.tensor([3]))
    assert moved[0].tolist() == pytest.approx([0.53, 0.47, 0.98, 0])
    assert images[0].tolist() == pytest.approx([0.5, 0.5, 0.95, 0.02])  # its input stays


def test_it_turns_back_where_the_loss_does() -> None:
    # The loss −(x − 0.56)² is highest at 0.56: from 0.5 in steps of 0.05 to 0.55, 0.60, 0.55, 0.60.
    images, labels = torch.tensor([[0.5]]), torch.tensor([0])
    for steps, expected in [(1, 0.55), (2, 0.60), (3, 0.55), (4, 0.60)]:
        hook = AdversarialTraining(0.3, steps, 0.05)
        moved, _ = hook.batch(lambda x, _: -(x - 0.56).square().sum(), images, labels)
        assert float(moved) == pytest.approx(expected)


def test_pixels_without_influence_stay() -> None:
    images, labels = torch.full((2, 3), 0.5), torch.tensor([0, 1])
    moved, _ = AdversarialTraining().batch(lambda x, _: x[:, 0].sum(), images, labels)
    assert moved.tolist() == [[pytest.approx(0.6), 0.5, 0.5]] * 2


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("hook", [AdversarialTraining(), AdversarialTraining(0.3, 4, 0.1)], ids=repr)
def test_equal_to_a_plain_loop(name: str, normalised: bool, hook: AdversarialTraining) -> None:
    task = task_of(name, normalised=normalised)
    params, (images, labels) = task.initial(), batch_of(12)
    moved, same = hook.batch(partial(task.loss, params), images, labels)
    assert torch.allclose(moved, slow_ascent(task, params, images, labels, hook), atol=1e-12)
    assert torch.equal(same, labels)
    assert float((moved - images).abs().max()) == pytest.approx(hook.epsilon)  # in pixels, normalised or not
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    before, after = (float(task.loss(params, shown, labels)) for shown in (images, moved))
    assert after > before + 0.01


@given(st.floats(0.001, 1.0), st.integers(1, 5), st.one_of(st.none(), st.floats(0.001, 2.0)), st.integers(0, 99))
def test_slow_twin(epsilon: float, steps: int, step_size: float | None, seed: int) -> None:
    """A linear loss, pixel by pixel in plain Python: every step goes the same way until it is stopped."""
    rng = torch.Generator().manual_seed(seed)
    images, slopes = torch.rand(1, 6, generator=rng, dtype=torch.float64), torch.randn(6, generator=rng).double()
    hook = AdversarialTraining(epsilon, steps, step_size)
    moved, _ = hook.batch(lambda x, _: (x * slopes).sum(), images, torch.tensor([0]))
    size = step_size if step_size is not None else 2.5 * epsilon / steps
    for pixel, slope, found in zip(images[0].tolist(), slopes.tolist(), moved[0].tolist(), strict=True):
        distance = math.copysign(min(steps * size, epsilon), slope)
        assert found == pytest.approx(min(1.0, max(0.0, pixel + distance)), abs=1e-12)
        assert abs(found - pixel) <= epsilon + 1e-15


def test_float32_stays_within_reach() -> None:
    task = Task.of(mlp((1, 8, 8), 10))
    images, labels = (batch_of(50)[0].float(), batch_of(50)[1])
    moved, _ = AdversarialTraining(8 / 255).batch(partial(task.loss, task.initial()), images, labels)
    assert moved.dtype == torch.float32
    assert float((moved - images).abs().max()) <= 8 / 255 + 1e-7  # one rounding
    assert 0 <= float(moved.min()) <= float(moved.max()) <= 1


@pytest.mark.parametrize("execute", [train_one_by_one, train_batched])
@pytest.mark.parametrize("name", MODELS)
def test_both_executors_train_on_what_a_plain_loop_finds(execute: Execute, name: str) -> None:
    """Before every step, against the parameters of that step; in evaluation mode, as the loss is."""
    task, hook = task_of(name), AdversarialTraining(0.2, 3)
    images, labels = batch_of(2, 2, 5)
    found = execute(task, LocalSGD(0.1, hooks=(hook,)), task.initial(), images, labels)
    for i in range(2):
        params = task.initial()
        for batch, targets in zip(images[i], labels[i], strict=True):
            moved = slow_ascent(task, params, batch, targets, hook)
            gradient, params = task.gradient(params, moved, targets)
            params = params - 0.1 * gradient
        assert torch.allclose(found[i], params - task.initial(), atol=1e-9)
    plain = execute(task, LocalSGD(0.1), task.initial(), images, labels)
    assert float((found - plain).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"epsilon": 0.0}, r"AdversarialTraining.epsilon must be in \(0, 1\], got 0.0"),
        ({"epsilon": 1.5}, r"AdversarialTraining.epsilon must be in \(0, 1\], got 1.5"),
        ({"steps": 0}, r"AdversarialTraining.steps must be at least 1, got 0"),
        ({"step_size": 0.0}, r"AdversarialTraining.step_size must be positive and finite, got 0.0"),
        ({"step_size": math.inf}, r"AdversarialTraining.step_size must be positive and finite, got inf"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        AdversarialTraining(**options)  # type: ignore[arg-type]
