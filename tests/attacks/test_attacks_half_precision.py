"""Every attack of the catalog on bfloat16 and float16 updates: the type is kept, the numbers are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cosdefense import Attack, Cohort
from cosdefense.attacks import (
    ALIE,
    Adaptive,
    Backdoor,
    Camouflage,
    ConstrainAndScale,
    ExplicitBoosting,
    InnerProduct,
    Mimic,
    MinMax,
    MinSum,
    OrthogonalInnerProduct,
    PoisonedBuffers,
    SignFlip,
    ZeroUpdates,
)
from cosdefense.catalog.registry import ATTACKS
from cosdefense.testing.examples import LAYOUT, masks
from policies import random_policy, save_policy
from promises import SHORTER_ATTACKS

DTYPES = [torch.bfloat16, torch.float16]


def cohort_of(dtype: torch.dtype, n: int, like: torch.dtype | None = None) -> Cohort:
    """Random updates that `dtype` can hold, stored as `like`."""
    rng = torch.Generator().manual_seed(n)
    updates, params = torch.randn(n, LAYOUT.size, generator=rng), torch.randn(LAYOUT.size, generator=rng).abs()
    return Cohort.of(updates.to(dtype).to(like or dtype), params.to(dtype).to(like or dtype), LAYOUT, seed=n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_keeps_the_type(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    options: dict[str, Any] = dict.fromkeys(SHORTER_ATTACKS.get(name, {}), 9)  # trials: these rounds are few and small
    if name == "learned-policy":
        options["path"] = save_policy(random_policy(LAYOUT), tmp_path)
    attack = ATTACKS[name](**options)
    for n in (1, 2, 5, 10):
        cohort = cohort_of(dtype, n)
        for malicious in masks(n, "cpu"):
            forged, state = attack.forge(cohort, malicious, attack.init())
            again, _ = attack.forge(cohort, malicious, state)
            for rows in (forged, again):
                assert rows.dtype == dtype
                assert bool(rows[malicious].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "attack",
    [ALIE(), Backdoor(), Camouflage(), ExplicitBoosting(), InnerProduct(), Mimic(), MinMax(), MinMax("sign"),
     MinMax("std"), MinSum(), OrthogonalInnerProduct(), SignFlip(3.0), Adaptive(trials=2),
     ConstrainAndScale(radius=0.1), PoisonedBuffers(10.0, -2.0), ZeroUpdates()],
    ids=repr,
)  # fmt: skip
def test_the_same_as_in_double_precision_up_to_rounding(attack: Attack, dtype: torch.dtype) -> None:
    """Attacks that draw random numbers or decide about near ties are left out: they may differ by more."""
    malicious = torch.arange(10) >= 6
    half, _ = attack.forge(cohort_of(dtype, 10), malicious, attack.init())
    exact, _ = attack.forge(cohort_of(dtype, 10, torch.float64), malicious, attack.init())
    tolerance = 2 * torch.finfo(dtype).eps * float(exact[malicious].abs().max())
    torch.testing.assert_close(half[malicious].double(), exact[malicious], rtol=0, atol=tolerance)
