"""Schedules by hand: late, on and off, ramps, stops; and that the simulator follows them."""

from __future__ import annotations

import pytest
import torch

from cosdefense import get
from cosdefense.attacks import SignFlip
from cosdefense.simulation.loop import Round, simulate
from cosdefense.simulation.schedule import Schedule
from worlds import digits_world


def active(schedule: Schedule, rounds: int = 14) -> list[int]:
    return [number for number in range(rounds) if schedule.attacks(number)]


def test_pinned_rounds() -> None:
    assert active(Schedule()) == list(range(14))
    assert active(Schedule(attack_start=3, attack_stop=6)) == [3, 4, 5]
    assert active(Schedule(attack_start=2, attack_period=4)) == [2, 6, 10]
    assert active(Schedule(attack_start=1, attack_period=5, attack_rounds=2)) == [1, 2, 6, 7, 11, 12]
    assert active(Schedule(attack_start=2, attack_stop=7, attack_period=4)) == [2, 6]
    assert active(Schedule(attack_start=2, attack_period=3, attack_rounds=3)) == list(range(2, 14))


def test_pinned_ramps() -> None:
    up = Schedule(attack_start=2, attack_growth=1.5, attack_scale_end=5.0)
    assert [up.scale(number) for number in range(2, 9)] == [1, 1.5, 2.25, 3.375, 5, 5, 5]
    assert up.scale(10**6) == 5  # no power of 1.5 is computed that would overflow
    down = Schedule(attack_scale=4.0, attack_growth=0.5)
    assert [down.scale(number) for number in range(5)] == [4, 2, 1, 1, 1]
    assert Schedule().scale(7) == 1
    constant = Schedule(attack_scale=0.3, attack_scale_end=0.3)
    assert [constant.scale(number) for number in (0, 9)] == [0.3, 0.3]


def play(attack: SignFlip, schedule: Schedule) -> list[Round]:
    world = digits_world()
    return list(simulate(world, attack, get("fedavg"), rounds=4, sampled=10, batch=4, seed=0, schedule=schedule))


def test_the_simulator_scales_what_malicious_clients_send() -> None:
    constant = play(SignFlip(), Schedule(attack_scale=2.0, attack_scale_end=2.0))
    doubled = play(SignFlip(2.0), Schedule())
    assert torch.equal(constant[-1].after.params, doubled[-1].after.params)
    growing = play(SignFlip(), Schedule(attack_growth=2.0, attack_scale_end=2.0))
    assert torch.equal(growing[0].after.params, play(SignFlip(), Schedule())[0].after.params)
    assert not torch.equal(growing[1].after.params, play(SignFlip(), Schedule())[1].after.params)


def test_the_simulator_pauses() -> None:
    paused = play(SignFlip(), Schedule(attack_period=2))
    malicious = digits_world().malicious
    expected = [number % 2 == 0 and bool(malicious[round_.clients].any()) for number, round_ in enumerate(paused)]
    assert [bool(round_.malicious.any()) for round_ in paused] == expected
    assert True in expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"attack_period": 0}, "attack_rounds must be from 1 to 0, got 1"),
        ({"attack_period": 3, "attack_rounds": 4}, "attack_rounds must be from 1 to 3, got 4"),
        ({"attack_rounds": 2}, "attack_rounds needs attack_period, got 2 alone"),
        ({"attack_growth": 0.0}, "attack_growth must be positive and finite, got 0.0"),
        ({"attack_scale": float("inf")}, "attack_scale must be positive and finite, got inf"),
        ({"attack_scale": 2.0}, "attack_growth must lead from attack_scale = 2.0 to attack_scale_end = 1.0, got 1.0"),
        (
            {"attack_growth": 2.0, "attack_scale_end": 0.5},
            "attack_growth must lead from attack_scale = 1.0 to attack_scale_end = 0.5, got 2.0",
        ),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Schedule(**options)  # type: ignore[arg-type]
