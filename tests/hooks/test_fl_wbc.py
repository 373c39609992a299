"""FL-WBC: noise only on weights whose gradient barely changed, of the promised size, in both executors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cosdefense import Layout
from cosdefense.hooks import FLWBC
from cosdefense.training.executor import train_batched, train_one_by_one
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.task import Task

D = 40_000
WIDE = Layout((("weight", (D,)),), "weight", D)
MIXED = Layout(
    (
        ("conv.weight", (3,)),
        ("conv.bias", (2,)),
        ("norm.weight", (2,)),
        ("norm.bias", (2,)),
        ("frozen.weight", (3,)),
        ("norm.running_mean", (2,)),
    ),
    "conv.weight",
    9,
)
Execute = Callable[[Task, LocalSGD, Tensor, Tensor, Tensor], Tensor]


def stepped(change: float, strength: float = 0.4, lr: float = 0.5, seed: int = 0) -> Tensor:
    """How far each of many weights moves when all gradients changed by `change`."""
    torch.manual_seed(seed)
    start, before = torch.zeros(D), torch.full((D,), 3.0)
    return FLWBC(strength).step(start, before + change, before, WIDE, lr)


def test_nothing_happens_at_the_first_step() -> None:
    params = torch.randn(D)
    assert torch.equal(FLWBC().step(params, torch.zeros(D), None, WIDE, 0.1), params)


def test_noise_is_laplace_times_the_learning_rate() -> None:
    # Υ ~ Laplace(0, s): mean absolute value s, variance 2 s², median absolute value s ln 2. With s = 0.4, lr = 0.5
    # the moves have mean absolute value 0.2. |Υ| is exponential: its standard deviation is s, so that of a mean of
    # 40,000 is s / 200; four of those are 2 %.
    moves = stepped(0.0)
    assert float(moves.abs().mean()) == pytest.approx(0.2, rel=0.02)
    assert float(moves.mean()) == pytest.approx(0, abs=4 * 0.2 * math.sqrt(2) / math.sqrt(D))
    assert float(moves.std()) == pytest.approx(0.2 * math.sqrt(2), rel=0.03)
    assert float(moves.abs().median()) == pytest.approx(0.2 * math.log(2), rel=0.03)
    assert float((moves > 0).double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(D))


@pytest.mark.parametrize(("strength", "lr"), [(0.4, 1.0), (0.4, 0.01), (1e-4, 0.5), (3.0, 0.5)])
def test_strength_and_learning_rate(strength: float, lr: float) -> None:
    assert float(stepped(0.0, strength, lr).abs().mean()) == pytest.approx(strength * lr, rel=0.02)


@pytest.mark.parametrize("change", [0.1, 0.4, 1.0, -0.4])
def test_only_where_the_gradient_changed_less_than_the_noise(change: float) -> None:
    """P(|Υ| ≥ |Δ|) = exp(−|Δ| / s), and no move is smaller than lr · |Δ|."""
    moves = stepped(change, strength=0.4, lr=0.5)
    moved = moves[moves != 0].abs()
    share = math.exp(-abs(change) / 0.4)
    assert len(moved) / D == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / D))
    assert float(moved.min()) >= 0.5 * abs(change) * (1 - 1e-6)
    # Memoryless: beyond the threshold it is an exponential again.
    assert float(moved.mean()) == pytest.approx(0.5 * (abs(change) + 0.4), rel=4 / math.sqrt(len(moved)))


def test_a_large_change_is_left_alone() -> None:
    assert bool((stepped(100.0) == 0).all())


def test_the_change_counts_not_the_gradient() -> None:
    """The pitfall of keeping a fraction of the old gradient: equal gradients must give no change at all."""
    torch.manual_seed(0)
    gradient = torch.full((D,), 1000.0)
    assert bool((FLWBC().step(torch.zeros(D), gradient, gradient.clone(), WIDE, 0.5) != 0).float().mean() > 0.999)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gets_the_same_noise(dtype: torch.dtype) -> None:
    """Drawn in float32 and rounded: in half precision the tail of the distribution would be infinite."""
    torch.manual_seed(0)
    zeros = torch.zeros(D, dtype=dtype)
    moves = FLWBC(0.4).step(zeros, zeros, zeros, WIDE, 0.5)
    assert moves.dtype == dtype
    torch.testing.assert_close(moves, stepped(0.0, 0.4, 0.5).to(dtype), rtol=0, atol=0)


def test_only_trained_weights_move() -> None:
    """Neither biases nor statistics, nor weights that are frozen."""
    torch.manual_seed(0)
    still, moved = torch.zeros(14), torch.zeros(14, dtype=torch.bool)
    for _ in range(20):
        moved |= FLWBC().step(still, still, still, MIXED, 0.5) != 0
    assert moved.tolist() == [True] * 3 + [False] * 2 + [True] * 2 + [False] * 7


@given(st.lists(st.integers(-40, 40).map(lambda x: x / 20), min_size=14, max_size=14), st.integers(0, 2**32))
def test_slow_twin(changes: list[float], seed: int) -> None:
    """Υ is what moves when nothing changed; with the same stream, it moves where |Δ| ≤ |Υ| and nowhere else."""
    params = torch.arange(14, dtype=torch.float64)
    before = torch.linspace(-1, 1, 14, dtype=torch.float64)
    gradient = before + torch.tensor(changes, dtype=torch.float64)
    torch.manual_seed(seed)
    noise = (FLWBC().step(torch.zeros_like(params), before, before, MIXED, 1.0)).tolist()
    torch.manual_seed(seed)
    found = FLWBC().step(params, gradient, before, MIXED, 0.5)
    for i, (change, upsilon) in enumerate(zip((gradient - before).tolist(), noise, strict=True)):
        expected = i + 0.5 * upsilon if abs(change) <= abs(upsilon) else float(i)
        assert float(found[i]) == pytest.approx(expected, abs=1e-14)


def test_it_does_not_write_to_its_input() -> None:
    params, gradient, previous = torch.zeros(14), torch.ones(14), torch.ones(14)
    FLWBC().step(params, gradient, previous, MIXED, 0.5)
    assert params.tolist() == [0] * 14
    assert gradient.tolist() == previous.tolist() == [1] * 14


@pytest.mark.parametrize("strength", [0.0, -1.0, math.inf, math.nan])
def test_mistakes_are_named(strength: float) -> None:
    with pytest.raises(ValueError, match=rf"FLWBC.strength must be positive and finite, got {strength}"):
        FLWBC(strength)


def case(steps: int, n: int = 3) -> tuple[Task, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Linear(60, 10)).double()
    images = torch.rand(n, steps, 6, 1, 8, 8, dtype=torch.float64)
    return Task.of(model), images, torch.randint(0, 10, (n, steps, 6))


@pytest.mark.parametrize("execute", [train_one_by_one, train_batched])
def test_one_step_is_not_touched(execute: Execute) -> None:
    task, images, labels = case(steps=1)
    plain = execute(task, LocalSGD(0.1), task.initial(), images, labels)
    shaken = execute(task, LocalSGD(0.1, hooks=(FLWBC(5.0),)), task.initial(), images, labels)
    assert torch.equal(plain, shaken)


@pytest.mark.parametrize("execute", [train_one_by_one, train_batched])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_two_steps_are_shaken_by_the_change_between_them(execute: Execute, momentum: float) -> None:
    """The noise comes after the second and last step: with and without it, updates differ by lr · Υ alone."""
    task, images, labels = case(steps=2)
    trainer = LocalSGD(0.1, momentum=momentum)
    plain = execute(task, trainer, task.initial(), images, labels)
    torch.manual_seed(7)
    shaken = execute(task, replace(trainer, hooks=(FLWBC(0.01),)), task.initial(), images, labels)
    noise = (shaken - plain) / 0.1
    is_weight = torch.zeros(task.layout.size, dtype=torch.bool)
    for name, where in task.layout.slices.items():
        is_weight[where] = name.endswith("weight")
    assert bool((noise[:, ~is_weight] == 0).all())
    for i in range(len(images)):
        first, moved = task.gradient(task.initial(), images[i, 0], labels[i, 0])
        second, _ = task.gradient(moved - 0.1 * first, images[i, 1], labels[i, 1])
        change = (second - first).abs()[is_weight]
        upsilon = noise[i, is_weight].abs()
        touched = upsilon > 1e-12
        assert bool((change[touched] <= upsilon[touched] + 1e-12).all())
        # By chance P(|Υ| ≥ |Δ|) = exp(−|Δ| / s) for each coordinate: the count is within 5 σ of the sum of those.
        chances = (-change / 0.01).exp()
        sigma = float((chances * (1 - chances)).sum().sqrt())
        assert float(touched.sum()) == pytest.approx(float(chances.sum()), abs=5 * sigma)
        assert 0 < int(touched.sum()) < len(touched)
    assert not torch.equal(noise[0] != 0, noise[1] != 0)  # every client its own


@pytest.mark.parametrize("execute", [train_one_by_one, train_batched])
def test_three_steps_equal_a_plain_loop(execute: Execute) -> None:
    """With one client both executors draw the same stream, and a loop that keeps the last gradient agrees."""
    task, images, labels = case(steps=3, n=1)
    hook = FLWBC(0.05)
    torch.manual_seed(3)
    params, previous = task.initial(), None
    for batch, targets in zip(images[0], labels[0], strict=True):
        gradient, params = task.gradient(params, batch, targets)
        params = hook.step(params - 0.1 * gradient, gradient, previous, task.layout, 0.1)
        previous = gradient
    torch.manual_seed(3)
    found = execute(task, LocalSGD(0.1, hooks=(hook,)), task.initial(), images, labels)
    expected = params - task.initial()
    assert torch.allclose(found[0], expected, atol=1e-12)


@pytest.mark.parametrize("execute", [train_one_by_one, train_batched])
def test_the_same_stream_gives_the_same_clients(execute: Execute) -> None:
    task, images, labels = case(steps=3)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(execute(task, LocalSGD(0.1, hooks=(FLWBC(),)), task.initial(), images, labels))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
