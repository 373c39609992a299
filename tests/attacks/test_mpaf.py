"""MPAF: the rule by hand, the two base models, and what clipping does not stop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cosdefense import Attack, Cohort, Layout, get
from cosdefense.attacks import MPAF
from cosdefense.attacks.mpaf import MPAFState
from doubles import save_and_load
from shapes import unchecked

LAYOUT = Layout((("w", (3,)), ("norm.running_mean", (1,))), "w", 3)
MALICIOUS = torch.tensor([False, True])


def cohort_at(params: list[float], seed: int = 0, dtype: torch.dtype = torch.float64) -> Cohort:
    return Cohort.of(torch.full((2, 4), 7.0, dtype=dtype), torch.tensor(params, dtype=dtype), LAYOUT, seed=seed)


def test_pinned_example() -> None:
    """w = (0.5, −1, 2), the base 0, times 10. Buffers stay."""
    state = MPAFState(torch.zeros(4, dtype=torch.float64))
    forged, after = MPAF(10.0).forge(cohort_at([0.5, -1.0, 2.0, 9.0]), MALICIOUS, state)
    assert forged[1].tolist() == [-5, 10, -20, 0]
    assert after is state


def test_the_first_model_is_the_base_for_good() -> None:
    attack = MPAF(2.0, base="first")
    first, state = attack.forge(cohort_at([1.0, 2.0, 3.0, 4.0]), MALICIOUS, attack.init())
    assert first[1].tolist() == [0, 0, 0, 0]
    second, state = attack.forge(cohort_at([2.0, 2.0, 1.0, 8.0]), MALICIOUS, save_and_load(state, attack))  # type: ignore[arg-type]
    assert second[1].tolist() == [-2, 0, 4, 0]


def test_a_random_base_looks_like_the_model_and_stays() -> None:
    rng = torch.Generator().manual_seed(0)
    layout = Layout((("a", (4000,)), ("b", (50,))), "a", 4050)
    params = torch.cat([3 + 0.5 * torch.randn(4000, generator=rng), torch.ones(50)])
    cohort = Cohort.of(torch.zeros(2, 4050), params, layout, seed=5)
    attack = MPAF(1.0)
    forged, state = attack.forge(cohort, MALICIOUS, attack.init())
    base = params + forged[1]
    torch.testing.assert_close(base, state.base)
    assert float(base[:4000].mean()) == pytest.approx(3, abs=0.05)
    assert float(base[:4000].std()) == pytest.approx(0.5, rel=0.05)
    assert torch.equal(base[4000:], torch.ones(50))  # a tensor of equal values has nothing to draw
    assert abs(float(torch.corrcoef(torch.stack([base[:4000], params[:4000]]))[0, 1])) < 0.05
    _, later = attack.forge(replace(cohort, seed=6, params=params + 1), MALICIOUS, state)
    assert torch.equal(later.base, state.base)
    _, other = attack.forge(replace(cohort, seed=6), MALICIOUS, attack.init())
    assert not torch.equal(other.base, state.base)


def test_numbers_stay_within_half_precision() -> None:
    state = MPAFState(torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float16))
    forged, _ = MPAF().forge(cohort_at([0.0, 0.0, 0.0, 0.0], dtype=torch.float16), MALICIOUS, state)
    assert forged[1].tolist() == [65504, -65504, 0, 0]


def test_clipping_does_not_stop_it_and_distances_do() -> None:
    """Three of ten, clipped to the norm of honest updates. Honest clients agree a little, fake clients fully."""
    rng = torch.Generator().manual_seed(0)
    layout, params = Layout((("w", (500,)),), "w", 500), torch.randn(500, generator=rng)
    honest = 0.1 * torch.randn(10, 500, generator=rng) + 0.02
    malicious, attack = torch.arange(10) >= 7, MPAF()
    forged, state = attack.forge(Cohort.of(honest, params, layout), malicious, attack.init())
    sent = Cohort.of(torch.where(malicious[:, None], forged, honest), params, layout)
    towards = state.base - params
    norm = float(honest.norm(dim=1).median())

    update = get("norm-clipping", max_norm=norm)(sent, get("norm-clipping").init())[0].update
    assert float(update @ towards / update.norm() / towards.norm()) > 0.5
    assert not bool(get("multi-krum")(sent, get("multi-krum").init())[0].weights[malicious].any())


def test_it_needs_no_data() -> None:
    assert not MPAF.needs_local_training
    assert Attack.needs_local_training
    with pytest.raises(ValueError, match=r"MPAF.scale must be positive and finite, got 0.0"):
        MPAF(0.0)
    with unchecked(), pytest.raises(ValueError, match=r"base must be one of \('random', 'first'\), got 'zero'"):
        MPAF(base="zero")  # type: ignore[arg-type]
