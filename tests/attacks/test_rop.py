"""ROP: the card's numbers, and that it moves centered clipping sideways without being clipped."""

from __future__ import annotations

import math

import pytest
import torch

from cosdefense import Cohort, Layout
from cosdefense.aggregators import CenteredClipping
from cosdefense.attacks import ROP
from cosdefense.attacks.rop import ROPState
from cosdefense.core import State
from doubles import save_and_load, slow_cosine

LAYOUT = Layout((("w", (3,)), ("norm.running_mean", (1,))), "w", 3)
MEAN = [1.0, 2.0, 2.0]
MALICIOUS = torch.tensor([False, True])


def cohort_of(params: list[float]) -> Cohort:
    rows = torch.tensor([[*MEAN, 5.0], [99.0] * 4], dtype=torch.float64)
    return Cohort.of(rows, torch.tensor([*params, 0.0], dtype=torch.float64), LAYOUT)


def forged(attack: ROP, step: tuple[float, ...] = (2.0, 0.0, 1.0)) -> list[float]:
    rows, state = attack.forge(cohort_of([7 + x for x in step]), MALICIOUS, ROPState(torch.full((3,), 7.0).double()))
    assert state.params.tolist() == pytest.approx([7 + x for x in step])
    assert float(rows[1, 3]) == 5  # buffers of the honest mean
    return rows[1, :3].tolist()


def test_pinned_example() -> None:
    """c = (2, 0, 1), μ = (1, 2, 2) of norm 3, z = 2."""
    assert forged(ROP(2 / 3)) == pytest.approx([2.531284, -1.837720, 0.416458], abs=1e-6)
    assert forged(ROP(2 / 3, angle=180.0)) == pytest.approx([0.276285, -0.181444, 0.002060], abs=1e-6)


def test_what_it_is_orthogonal_to_and_how_long() -> None:
    push = [a - b for a, b in zip(forged(ROP(0.5)), (2.0, 0.0, 1.0), strict=True)]
    assert math.hypot(*push) == pytest.approx(1.5)
    assert slow_cosine(push, [1.9, 0.2, 1.1]) == pytest.approx(0, abs=1e-12)
    at_mean = [a - b for a, b in zip(forged(ROP(0.5, relocation=0.0)), MEAN, strict=True)]
    assert at_mean == pytest.approx(push)
    signs = [a - b for a, b in zip(forged(ROP(0.5, pattern="sign")), (2.0, 0.0, 1.0), strict=True)]
    assert signs == pytest.approx(push)  # all honest signs are plus


def test_the_first_round_starts_from_zero() -> None:
    attack = ROP(1.0)
    rows, state = attack.forge(cohort_of([1.0, 1.0, 1.0]), MALICIOUS, attack.init())
    assert math.hypot(*rows[1, :3].tolist()) == pytest.approx(3)
    assert slow_cosine(rows[1, :3].tolist(), MEAN) == pytest.approx(0, abs=1e-12)
    again = save_and_load(state, attack)  # type: ignore[arg-type]
    assert torch.equal(again.params, state.params)


def drift(attack_strength: float | None) -> float:
    """How far centered clipping has moved sideways after thirty rounds, in honest means."""
    rng, clipping = torch.Generator().manual_seed(0), CenteredClipping(radius=0.5)
    layout, malicious = Layout((("w", (200,)),), "w", 200), torch.arange(10) >= 7
    params, memory = torch.zeros(200, dtype=torch.float64), clipping.init()
    goal = torch.cat([torch.ones(100), -torch.ones(100)]).double() / 200**0.5
    attack = ROP(attack_strength or 1.0)
    state: State = attack.init()
    for _ in range(30):
        rows = goal + 0.02 * torch.randn(10, 200, generator=rng, dtype=torch.float64)
        cohort = Cohort.of(rows, params, layout)
        if attack_strength is not None:
            sent, state = attack.forge(cohort, malicious, state)
            cohort = Cohort.of(torch.where(malicious[:, None], sent, rows), params, layout)
        update, memory = clipping(cohort, memory)
        params = params + update
    return float(params.sum() / 200**0.5) / -30  # along the vector of ones, the way that 270° pushes


def test_it_drags_centered_clipping_sideways() -> None:
    assert abs(drift(None)) < 0.02
    assert drift(1.0) > 0.1


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"ROP.strength must be positive and finite, got 0.0"):
        ROP(0.0)
    with pytest.raises(ValueError, match=r"ROP.angle must be finite, got inf"):
        ROP(angle=math.inf)
    with pytest.raises(ValueError, match=r"ROP.relocation must be from 0 to 1, got 2.0"):
        ROP(relocation=2.0)
