"""Neurotoxin: the mask by hand, in every local step, and that it avoids what honest training changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Layout
from cosdefense.attacks import Neurotoxin
from cosdefense.attacks.neurotoxin import select_smallest
from cosdefense.core import generator
from cosdefense.training.executor import train_clients
from doubles import save_and_load
from worlds import digits_world

LAYOUT = Layout((("w", (5,)), ("norm.running_mean", (1,))), "w", 5)
LAST = torch.tensor([0.5, -0.1, 0.05, -2.0, 0.3, 9.0])  # the last global update
KEPT = [False, True, True, False, True, True]


def test_pinned_mask() -> None:
    """The smallest by magnitude. By signed value, a known mistake, the fourth would be kept and the fifth not."""
    assert select_smallest(LAST[:5].abs(), 0.6).tolist() == KEPT[:5]


def test_masked_from_the_second_round_on() -> None:
    attack = Neurotoxin(keep=0.6, scale=2.0)
    start, rows = torch.ones(6), torch.arange(1.0, 13).view(2, 6)
    malicious = torch.tensor([False, True])
    first, state = attack.forge(Cohort.of(rows, start, LAYOUT), malicious, attack.init())
    assert torch.equal(first[1], 2 * rows[1])
    state = save_and_load(state, attack)  # type: ignore[arg-type]
    second, state = attack.forge(Cohort.of(rows, start + LAST, LAYOUT), malicious, state)
    assert second[1].tolist() == [0, 16, 18, 0, 22, 24]
    assert torch.equal(state.params, start + LAST)
    limited, _ = replace(attack, radius=1.0, scale=1.0).forge(
        Cohort.of(rows, start + LAST, LAYOUT), malicious, replace(state, params=start)
    )
    weights = torch.tensor([0.0, 8, 9, 0, 11])
    torch.testing.assert_close(limited[1, :5], weights / weights.norm())
    assert float(limited[1, 5]) == 12


def test_every_step_is_masked() -> None:
    """Two steps by hand: the second gradient is that of the masked parameters."""
    world = digits_world(n_clients=10)
    start = world.task.initial()
    before = start + 0.01 * torch.randn(len(start), generator=torch.Generator().manual_seed(0))
    images, labels = world.draw_batches(torch.tensor([1]), 2, 6, generator(0, "x"))
    attack = Neurotoxin(keep=0.5)
    _, state = attack.forge(Cohort.of(before[None], before, world.task.layout), torch.tensor([True]), attack.init())
    plan = attack.plan_training(start, world.task.layout, 1, state)
    (update,) = train_clients(world.task, replace(world.trainer, hooks=plan.hooks), start, images, labels)
    mask = (start - before).abs() <= (start - before).abs().median()
    params = start
    for batch, targets in zip(images[0], labels[0], strict=True):
        params = params - world.trainer.lr * mask * world.task.gradient(params, batch, targets)[0]
    torch.testing.assert_close(update, params - start, rtol=0, atol=1e-6)
    assert bool((update[~mask] == 0).all())
    assert 0.45 < float(mask.float().mean()) < 0.55


@given(st.lists(st.integers(0, 5).map(float), min_size=1, max_size=9), st.sampled_from([0.1, 0.5, 0.95, 1.0]))
def test_slow_twin(magnitudes: list[float], share: float) -> None:
    count = max(1, int(share * len(magnitudes) + 1e-9))
    limit = sorted(magnitudes)[count - 1]
    found = select_smallest(torch.tensor(magnitudes), share).tolist()
    assert found == [value <= limit for value in magnitudes]


def test_mistakes_are_named() -> None:
    for keep in (0.0, 1.5):
        with pytest.raises(ValueError, match=rf"Neurotoxin.keep must be in \(0, 1\], got {keep}"):
            Neurotoxin(keep=keep)
    with pytest.raises(ValueError, match=r"Neurotoxin.radius must be positive, got 0.0"):
        Neurotoxin(radius=0.0)
