"""The optimized trigger: one step by hand, what the simulator gives it, and that it needs less poisoning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cosdefense import Attack, get
from cosdefense.attacks import OptimizedTrigger
from cosdefense.attacks.optimized_trigger import OptimizedTriggerState, step_against
from cosdefense.data import load
from cosdefense.simulation.evaluation import evaluate
from cosdefense.simulation.loop import simulate
from cosdefense.training.batches import to_unit_range
from doubles import save_and_load
from worlds import digits_world


def test_pinned_step() -> None:
    trigger, gradient = torch.tensor([0.5, 0.5, 0.99]), torch.tensor([0.2, -0.3, -0.1])
    assert step_against(gradient, trigger, 0.01).tolist() == pytest.approx([0.49, 0.51, 1.0])


def test_every_pass_descends_the_loss_of_the_target() -> None:
    """A linear model: the signs of the gradient are known, and never change."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(images), labels)

    images, labels = torch.rand(5, 1, 6, 6), torch.tensor([0, 1, 2, 0, 1])
    attack = OptimizedTrigger(target=2, size=2, offset=1, passes=3, rate=0.1)
    informed, state = attack.with_model(loss, images, labels, attack.init())
    expected = torch.full((1, 2, 2), 0.5)
    for _ in range(3):
        stamped = images.clone()
        stamped[:, :, 1:3, 1:3] = expected
        stamped.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(stamped, torch.full((5,), 2)), stamped)
        expected = (expected - 0.1 * gradient[:, :, 1:3, 1:3].sum(dim=0).sign()).clamp(0, 1)
    torch.testing.assert_close(state.trigger, expected)
    shown, taught = informed.poison(images, labels, 3, torch.Generator())
    assert torch.equal(shown[0, :, 1:3, 1:3], expected)
    assert torch.equal(shown[1:], images[1:])  # a quarter of five is one
    assert taught.tolist() == [2, 1, 2, 0, 1]
    _, later = attack.with_model(loss, images, labels, save_and_load(state, attack))  # type: ignore[arg-type]
    assert float((later.trigger - state.trigger).abs().max()) == pytest.approx(0.2, abs=0.11)  # it goes on from there
    assert attack.with_state(attack.init()) is attack
    aim = attack.with_state(state).prepare_evaluation(images, labels, 3)
    assert aim is not None
    assert torch.equal(aim[0][4, :, 1:3, 1:3], expected)


def test_the_simulator_gives_it_the_model() -> None:
    world = replace(digits_world(), malicious=torch.ones(50, dtype=torch.bool))
    attack = OptimizedTrigger(passes=2)
    (round_,) = simulate(world, attack, get("fedavg"), rounds=1, sampled=3, batch=4, seed=0)
    trigger = round_.after.attack_state.trigger
    assert trigger.shape == (1, 5, 5)
    assert set(((trigger - 0.5) / 0.01).abs().round().flatten().tolist()) <= {0.0, 1.0, 2.0}
    world = replace(world, malicious=~world.malicious)
    (quiet,) = simulate(world, attack, get("fedavg"), rounds=1, sampled=3, batch=4, seed=0)
    assert not quiet.after.attack_state.trigger.numel()


@pytest.mark.slow
def test_the_trigger_alone_fools_an_honest_model() -> None:
    """Nothing is poisoned here: the trigger is optimized on a model that honest clients trained."""
    world, digits = digits_world(n_clients=20, malicious=0.0), load("digits")
    *_, last = simulate(world, Attack(), get("fedavg"), rounds=30, sampled=10, batch=8, seed=0, local_steps=2)
    attack = OptimizedTrigger(target=3, passes=40)
    images, labels = to_unit_range(digits.train_inputs[:64]), digits.train_targets[:64]
    _, state = attack.with_model(
        lambda batch, wanted: world.task.loss(last.after.params, batch, wanted), images, labels, attack.init()
    )
    assert isinstance(state, OptimizedTriggerState)
    gray, found = (
        evaluate(world.task, last.after.params, digits.test_inputs, digits.test_targets, informed, 10)
        for informed in (attack, attack.with_state(state))
    )
    assert gray.attack_success is not None
    assert found.attack_success is not None
    assert gray.attack_success < 0.3
    assert found.attack_success > 0.7
    assert found.clean_target_rate is not None
    assert found.clean_target_rate < 0.1


def test_mistakes_are_named() -> None:
    for name in ("size", "passes"):
        with pytest.raises(ValueError, match=f"OptimizedTrigger.{name} must be at least 1, got 0"):
            OptimizedTrigger(**{name: 0})
    with pytest.raises(ValueError, match=r"OptimizedTrigger.rate must be in \(0, 1\], got 0.0"):
        OptimizedTrigger(rate=0.0)
    with pytest.raises(ValueError, match="OptimizedTrigger needs images of at least 7 × 7, got 6 × 8"):
        OptimizedTrigger().poison(torch.zeros(1, 1, 6, 8), torch.tensor([1]), 10, torch.Generator())
