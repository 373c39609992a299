"""Attacks in a federation: each does its harm to a rule that it was made for, and not where that is documented."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from cosdefense import Attack, get
from cosdefense.attacks import (
    DBA,
    MPAF,
    AdapSim,
    Backdoor,
    ConstrainAndScale,
    EdgeCase,
    InnerProduct,
    Neurotoxin,
    NoiseCamouflage,
    OptimizedTrigger,
    PoisonedFL,
    ZeroSumMasks,
    ZeroUpdates,
)
from cosdefense.data import load
from cosdefense.simulation.evaluation import Evaluation, evaluate
from cosdefense.simulation.loop import Snapshot, simulate
from cosdefense.simulation.schedule import Schedule
from cosdefense.simulation.world import World
from cosdefense.training.executor import train_clients
from worlds import digits_world

pytestmark = pytest.mark.slow  # trains for many rounds


@cache
def trained() -> tuple[World, Snapshot]:
    """Twenty clients, four of them malicious, and a model that was trained centrally: 81 % accuracy."""
    world = digits_world(n_clients=20, malicious=0.2)
    rows = torch.randint(0, len(world.targets), (1, 120, 32), generator=torch.Generator().manual_seed(0))
    start = world.task.initial()
    (update,) = train_clients(world.task, world.trainer, start, *world.gather(rows))
    return world, Snapshot(0, start + update, None, None)


def attacked(
    attack: Attack, name: str, rounds: int, *, many: bool = False, stop: int | None = None, **options: float
) -> Evaluation:
    """The model after some rounds of the attack. `many`: eight of twenty clients are malicious, not four."""
    world, start = trained()
    if many:
        world = replace(world, malicious=world.malicious | (torch.arange(20) % 5 == 0) | (torch.arange(20) % 7 == 3))
    defense = get(name, **options)
    *_, last = simulate(
        world, attack, defense, rounds=rounds, sampled=10, batch=8, seed=0, schedule=Schedule(attack_stop=stop),
        resume=replace(start, defense_state=defense.init(), attack_state=attack.init()),
    )  # fmt: skip
    digits = load("digits")
    informed = attack.with_state(last.after.attack_state)
    return evaluate(world.task, last.after.params, digits.test_inputs, digits.test_targets, informed, 10)


@cache
def honest(rounds: int) -> float:
    return attacked(Attack(), "fedavg", rounds).accuracy


def test_zero_updates_stop_krum_and_slow_down_the_mean_a_little() -> None:
    assert attacked(ZeroUpdates(), "krum", 6).accuracy < honest(6) - 0.05
    assert attacked(ZeroUpdates(), "fedavg", 6).accuracy > honest(6) - 0.05


def test_noise_camouflage_harms_the_mean() -> None:
    assert attacked(NoiseCamouflage(2.0), "fedavg", 6, many=True).accuracy < honest(6) - 0.08


def test_poisonedfl_destroys_a_mean_and_not_foolsgold() -> None:
    assert attacked(PoisonedFL(), "fedavg", 10).accuracy < 0.3
    assert attacked(PoisonedFL(), "foolsgold", 10).accuracy > 0.8


def test_mpaf_survives_clipping() -> None:
    assert attacked(MPAF(), "norm-clipping", 10, many=True, max_norm=2.0).accuracy < 0.5


def test_zero_sum_masks_hide_copies_from_foolsgold() -> None:
    assert attacked(InnerProduct(), "foolsgold", 8).accuracy > 0.8
    assert attacked(ZeroSumMasks(InnerProduct(), 2.0), "foolsgold", 8).accuracy < 0.3


def test_adapsim_destroys_a_mean() -> None:
    assert attacked(AdapSim(), "fedavg", 10, many=True).accuracy < 0.5


@pytest.mark.parametrize(
    "attack",
    [
        ConstrainAndScale(radius=0.5, steps=5),
        Neurotoxin(scale=None, steps=5),
        DBA(scale=None, steps=5, fraction=0.5),
        EdgeCase(scale=None, steps=5),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_targeted_attacks_succeed_with_scaling_and_not_through_a_norm_limit(attack: Attack) -> None:
    found, clipped = attacked(attack, "fedavg", 6), attacked(attack, "norm-clipping", 6, max_norm=0.1)
    assert found.attack_success is not None
    assert clipped.attack_success is not None
    assert found.attack_success > 0.6
    assert clipped.attack_success < 0.2
    assert clipped.accuracy > 0.8


def test_a_replaced_model_keeps_its_backdoor_for_a_while() -> None:
    """Eight rounds after the attackers left success is above one half, and clean images are not affected."""
    left = attacked(Backdoor(scale=None, steps=5), "fedavg", 12, stop=4)
    assert left.attack_success is not None
    assert left.clean_target_rate is not None
    assert left.attack_success > 0.5
    assert left.clean_target_rate < 0.05
    assert left.accuracy > 0.85


def test_an_optimized_trigger_needs_no_scaling() -> None:
    plain, optimized = (
        attacked(attack, "fedavg", 3) for attack in (Backdoor(fraction=0.25, size=5), OptimizedTrigger(passes=30))
    )
    assert plain.attack_success is not None
    assert optimized.attack_success is not None
    assert optimized.attack_success > plain.attack_success + 0.4
    assert optimized.accuracy > 0.8
