"""PoisonedFL: the card's example, the release's quantiles, a slow twin over rounds, and that small steps add up."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Layout
from cosdefense.attacks import PoisonedFL
from cosdefense.attacks.poisoned_fl import PoisonedFLState, _direct, aligned_by_chance, draw_signs
from cosdefense.core import State
from doubles import save_and_load

MALICIOUS = torch.tensor([False, True])


def cohort_at(params: torch.Tensor, seed: int = 0) -> Cohort:
    d = len(params)
    return Cohort.of(torch.zeros(2, d, dtype=params.dtype), params, Layout((("w", (d,)),), "w", d), seed=seed)


def test_pinned_example() -> None:
    signs = torch.tensor([1.0, -1, 1, -1], dtype=torch.float64)
    step = torch.tensor([0.3, -0.1, 0.2, 0.2], dtype=torch.float64)
    sent = _direct(step, signs, signs, 8.0)
    assert sent.tolist() == pytest.approx([0.683666, -0.872455, 0.094395, -3.206636], abs=1e-6)


@pytest.mark.parametrize(
    ("size", "quantile"), [(1204682, 603618), (139960, 70415), (717924, 359948), (145212, 73049), (710218, 356089)]
)
def test_the_quantiles_of_the_release(size: int, quantile: int) -> None:
    """Four model sizes are written into the authors' code; the last one was computed from the exact distribution."""
    assert aligned_by_chance(size) == quantile


@given(st.integers(20, 200))
def test_the_quantile_of_the_exact_distribution(size: int) -> None:
    total, count = 0, -1
    while total < 0.99 * 2**size:
        count += 1
        total += math.comb(size, count)
    assert abs(aligned_by_chance(size) - count) <= 1


def play(attack: PoisonedFL, models: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[State]]:
    state, sent, states = attack.init(), [], []
    for number, params in enumerate(models):
        forged, state = attack.forge(cohort_at(params, seed=number), MALICIOUS, save_and_load(state, attack))  # type: ignore[arg-type]
        sent.append(forged[1])
        states.append(state)
    return sent, states


def test_slow_twin() -> None:
    """Eight rounds of a model that wanders, with a look at the effect every third."""
    rng = torch.Generator().manual_seed(0)
    models = [torch.zeros(30, dtype=torch.float64)]
    for _ in range(8):
        models.append(models[-1] + torch.randn(30, generator=rng, dtype=torch.float64))
    found, states = play(PoisonedFL(4.0, window=3), models)
    signs, c, last, start = draw_signs(0, 30).tolist(), 4.0, [0.0] * 30, models[0].tolist()
    assert set(signs) == {1.0, -1.0}
    assert not bool(found[0].any())
    for t in range(1, 9):
        g = (models[t] - models[t - 1]).tolist()
        if t % 3 == 0:
            moved = [a - b for a, b in zip(models[t].tolist(), start, strict=True)]
            aligned = sum((x > 0) == (s > 0) for x, s in zip(moved, signs, strict=True))
            if aligned < aligned_by_chance(30) and 0.7 * c >= 0.5:
                c *= 0.7
            start = models[t].tolist()
        length, sent_length = math.hypot(*g), math.hypot(*last)
        v = [abs(x - (y * length / sent_length if sent_length else 0.0)) for x, y in zip(g, last, strict=True)]
        last = [c * length * x / math.hypot(*v) * s for x, s in zip(v, signs, strict=True)]
        assert found[t].tolist() == pytest.approx(last)
        assert states[t].scale == pytest.approx(c)
    assert c < 4  # a wandering model does not follow the signs


def test_the_factor_has_a_lower_limit_and_stays_where_the_model_follows() -> None:
    still = [torch.full((20,), float(number % 2), dtype=torch.float64) for number in range(12)]
    _, states = play(PoisonedFL(1.0, window=1), still)
    assert states[-1].scale == pytest.approx(0.7)  # 0.49 would be below 0.5
    signs = draw_signs(0, 20)
    _, states = play(PoisonedFL(1.0, window=1), [number * signs for number in range(6)])
    assert states[-1].scale == 1.0


def test_small_steps_add_up() -> None:
    """A server that moves by a hundredth of what is sent, among honest noise ten times as long, still drifts."""
    attack, params = PoisonedFL(), torch.zeros(400, dtype=torch.float64)
    state: State = attack.init()
    rng = torch.Generator().manual_seed(0)
    for number in range(60):
        forged, state = attack.forge(cohort_at(params, seed=number), MALICIOUS, state)
        noise = 0.01 * torch.randn(400, generator=rng, dtype=torch.float64)
        params = params + noise + 0.02 * forged[1] / max(1e-9, float(forged[1].norm()))
    signs = draw_signs(0, 400)
    assert float((params.sign() == signs).double().mean()) > 0.62
    assert isinstance(state, PoisonedFLState)


def test_rounds_without_fake_clients_are_watched_too() -> None:
    attack, nobody = PoisonedFL(), torch.tensor([False, False])
    models = [torch.full((4,), float(number), dtype=torch.float64) for number in range(3)]
    _, state = attack.forge(cohort_at(models[0]), MALICIOUS, attack.init())
    _, state = attack.forge(cohort_at(models[1]), nobody, state)
    assert not bool(state.sent.any())
    assert torch.equal(state.params, models[1])
    forged, _ = attack.forge(cohort_at(models[2]), MALICIOUS, state)
    assert float(forged[1].norm()) == pytest.approx(8 * 2)  # 8 · ‖g‖, g of the last round alone


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"PoisonedFL.scale must be positive and finite, got 0.0"):
        PoisonedFL(0.0)
    with pytest.raises(ValueError, match=r"PoisonedFL.window must be at least 1, got 0"):
        PoisonedFL(window=0)
