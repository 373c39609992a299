"""Factions in the simulator, on digits: what breaks CosDefense leaves it standing, and peace costs it little."""

from __future__ import annotations

from functools import cache

import pytest

from cosdefense import Attack, get
from cosdefense.attacks import Adaptive, InnerProduct, OrthogonalInnerProduct, SignFlip
from cosdefense.data import load
from cosdefense.simulation.evaluation import evaluate
from cosdefense.simulation.loop import simulate
from worlds import digits_world

pytestmark = pytest.mark.slow  # trains for many rounds


@cache
def outcome(attack: Attack, name: str) -> float:
    """Accuracy after 60 rounds, 30 % of the clients lying from the first one on."""
    world, digits = digits_world(), load("digits")
    *_, last = simulate(world, attack, get(name), rounds=60, sampled=10, batch=16, seed=0)
    return evaluate(world.task, last.after.params, digits.test_images, digits.test_labels, attack, 10).accuracy


@pytest.mark.parametrize(
    "attack",
    [OrthogonalInnerProduct(), SignFlip(5.0), Adaptive(trials=20, stop_at_damage=1.5)],
    ids=lambda a: type(a).__name__,
)
def test_what_breaks_cosdefense_leaves_it_standing(attack: Attack) -> None:
    assert outcome(attack, "cosdefense") < 0.3
    assert outcome(attack, "factions") > 0.5


def test_short_lies_gain_nothing_when_honest_updates_grow() -> None:
    """Here they do after thirty rounds: rejecting the honest for it left the model to the liars, at 21 %."""
    assert outcome(InnerProduct(epsilon=1.0), "factions") > outcome(InnerProduct(epsilon=1.0), "fedavg") + 0.05


def test_in_peace_it_costs_little() -> None:
    assert outcome(Attack(), "factions") > outcome(Attack(), "fedavg") - 0.02


def test_small_cohorts_may_hold_a_majority_of_liars() -> None:
    """Of three or four sampled clients two lie every so often: they are one voice."""
    world, digits = digits_world(), load("digits")
    found = {}
    for name in ("fedavg", "factions"):
        *_, last = simulate(world, InnerProduct(), get(name), rounds=120, sampled=4, batch=16, seed=0)
        found[name] = evaluate(
            world.task, last.after.params, digits.test_images, digits.test_labels, Attack(), 10
        ).accuracy
    assert found["fedavg"] < 0.3
    assert found["factions"] > 0.7
