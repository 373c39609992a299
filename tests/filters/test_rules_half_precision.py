"""Every filter and aggregator on bfloat16 and float16 updates, against float32 on the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from cosdefense import Aggregator, Cohort, Defense, Filter, TrustedData
from cosdefense.aggregators import CenteredClipping, Mean
from cosdefense.catalog.registry import AGGREGATORS, FILTERS
from cosdefense.filters import FoolsGold
from cosdefense.testing.examples import LAYOUT, ExampleTrustedData
from promises import SHORTER

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Rounded(TrustedData):
    """Computes in float32 and answers in the type of the question, so that all types see the same server."""

    server: TrustedData = ExampleTrustedData()

    def update(self, params: Tensor, seed: int) -> Tensor:
        return self.server.update(params.float(), seed).to(params.dtype)

    def predict(self, params: Tensor) -> tuple[Tensor, Tensor]:
        logits, labels = self.server.predict(params.float())
        return logits.to(params.dtype), labels

    def predict_random(self, params: Tensor, updates: Tensor, n: int, seed: int) -> Tensor:
        return self.server.predict_random(params.float(), updates.float(), n, seed).to(params.dtype)

    def guides(self, clients: Tensor, params: Tensor, seed: int) -> Tensor:
        return self.server.guides(clients, params.float(), seed).to(params.dtype)


def half_cohort(dtype: torch.dtype, seed: int = 0, n: int = 11) -> Cohort:
    rng = torch.Generator().manual_seed(seed)
    updates = torch.randn(n, LAYOUT.size, generator=rng) + 0.5
    updates[:3] *= -2.0
    params = torch.randn(LAYOUT.size, generator=rng)
    return Cohort.of(updates.to(dtype), params.to(dtype), LAYOUT, seed=seed, trusted_data=Rounded())


def widened(cohort: Cohort) -> Cohort:
    """The same numbers in float32."""
    return replace(cohort, updates=cohort.updates.float(), params=cohort.params.float())


def assert_near(result: Tensor, expected: Tensor, dtype: torch.dtype, scale: float) -> None:
    """Within two roundings of the largest number involved."""
    torch.testing.assert_close(result.float(), expected.float(), rtol=0, atol=2 * torch.finfo(dtype).eps * scale)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("part", [kind(**SHORTER.get(name, {})) for name, kind in FILTERS.items()], ids=repr)
def test_filters(part: Filter, dtype: torch.dtype) -> None:
    state, wide_state = part.init(), part.init()
    for seed in range(3):
        cohort = half_cohort(dtype, seed)
        judgment, state = part(cohort, state)
        expected, wide_state = part(widened(cohort), wide_state)
        assert torch.equal(judgment.weights != 0, expected.weights != 0)
        assert_near(judgment.weights, expected.weights, dtype, 1.0)
        assert_near(judgment.scores, expected.scores, dtype, float(expected.scores.abs().max()))
        if expected.updates is not None:
            assert judgment.updates is not None
            assert judgment.updates.dtype == dtype
            assert_near(judgment.updates, expected.updates, dtype, float(expected.updates.abs().max()))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("part", [kind() for kind in AGGREGATORS.values()], ids=repr)
def test_aggregators(part: Aggregator, dtype: torch.dtype) -> None:
    state, wide_state = part.init(), part.init()
    for seed in range(3):
        cohort = half_cohort(dtype, seed)
        update, state = part(cohort, state)
        expected, wide_state = part(widened(cohort), wide_state)
        assert update.dtype == dtype
        assert_near(update, expected, dtype, float(cohort.updates.abs().max()))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_mean_of_many_clients_is_rounded_once(dtype: torch.dtype) -> None:
    """Weights of 1/300 and sums of 300 rows in half precision would lose whole digits."""
    cohort = half_cohort(dtype, n=300)
    verdict, _ = (defense := Defense((), Mean(), buffers="aggregator"))(cohort, defense.init())
    exact = cohort.updates.double().mean(dim=0)
    torch.testing.assert_close(verdict.update.double(), exact, rtol=0.501 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_small_steps_add_up(dtype: torch.dtype) -> None:
    """2000 steps of 0.001 from 0: in half precision a sum stops growing long before it reaches 1.8."""
    cohort = replace(half_cohort(dtype), updates=torch.zeros(11, LAYOUT.size, dtype=dtype))
    cohort.updates[:, 0] = 100.0
    part, state = CenteredClipping(radius=1e-3), None
    for _ in range(2000):
        update, state = part(cohort, state)
    assert float(update[0]) == pytest.approx(2.0, rel=2 * torch.finfo(dtype).eps)


def test_foolsgold_remembers_small_updates() -> None:
    cohort = half_cohort(torch.bfloat16, n=2)
    part, state = FoolsGold(head_only=False), FoolsGold().init()
    for _ in range(1000):
        _, state = part(cohort, state)
    torch.testing.assert_close(state.rows, 1000 * cohort.trainable().float(), rtol=1e-4, atol=0)
