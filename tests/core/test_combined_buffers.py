"""Buffers (BatchNorm statistics) are combined by their median over all clients, whatever the filters decide."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cosdefense import Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import PRESETS, build_defense, describe
from cosdefense.filters import ByGARS, ByGARSPlusPlus, Clip, CosDefense, FLTrust, Krum
from cosdefense.testing.examples import LAYOUT, ExampleTrustedData
from shapes import unchecked

BUFFERS = slice(LAYOUT.n_trainable, LAYOUT.size)
IS_VARIANCE = [any(where.start <= i < where.stop for where in LAYOUT.variances) for i in range(LAYOUT.size)]
MALICIOUS = slice(0, 3)


def poisoned() -> Cohort:
    """Ten clients. The weights of three are near the honest mean, so that Krum selects one. Their buffers are wild."""
    rng = torch.Generator().manual_seed(0)
    updates = 0.1 * torch.randn(10, LAYOUT.size, generator=rng) + 0.5
    updates[MALICIOUS] = updates[3:].mean(dim=0) + 1e-4 * torch.randn(3, LAYOUT.size, generator=rng)
    updates[MALICIOUS, BUFFERS] += 1000.0
    params = torch.randn(LAYOUT.size, generator=rng)
    return Cohort.of(updates, params, LAYOUT, trusted_data=ExampleTrustedData())


@pytest.mark.parametrize("name", PRESETS)
def test_poisoned_buffers_stay_within_the_honest_range(name: str) -> None:
    cohort, defense = poisoned(), get(name)
    verdict, _ = defense(cohort, defense.init())
    if verdict.skipped is None and defense.combines_buffers:  # others take the server's own
        honest, combined = cohort.updates[3:, BUFFERS], verdict.update[BUFFERS]
        assert bool((combined >= honest.amin(dim=0)).all())
        assert bool((combined <= honest.amax(dim=0)).all())


def test_the_mean_of_buffers_is_an_option() -> None:
    """What the papers do: a single client moves the statistics anywhere."""
    defense = replace(get("krum"), buffers="aggregator")
    verdict, _ = defense(poisoned(), defense.init())
    assert bool((verdict.update[BUFFERS] > 900).all())
    assert int((verdict.weights != 0).sum()) == 1


def test_all_finite_clients_count_once_whatever_their_weight() -> None:
    cohort = poisoned()
    updates = cohort.updates.clone()
    updates[9, 0] = float("nan")
    cohort = replace(cohort, updates=updates, weights=torch.arange(1.0, 11.0))
    for defense in (Defense((), Mean()), Defense((Krum(),), Mean())):
        verdict, _ = defense(cohort, defense.init())
        expected = np.median(updates[:9, BUFFERS].numpy(), axis=0)
        assert np.array_equal(verdict.update[BUFFERS].numpy(), expected)


def test_buffers_that_a_filter_replaces_are_kept() -> None:
    """FLTrust and ByGARS replace buffers by the server's own. Most clients are malicious here."""
    updates = torch.ones(10, LAYOUT.size)
    updates[:7, BUFFERS] = 1000.0
    trusted = ExampleTrustedData()
    cohort = Cohort.of(updates, torch.ones(LAYOUT.size), LAYOUT, trusted_data=trusted)
    own = trusted.update(cohort.params, cohort.seed)
    cohort = replace(cohort, updates=torch.where(torch.arange(LAYOUT.size) < BUFFERS.start, own, updates))
    for filters in ((FLTrust(),), (Clip(1.0), FLTrust()), (ByGARS(),), (ByGARSPlusPlus(),)):
        defense = Defense(filters, Mean())
        verdict, _ = defense(cohort, defense.init())
        expected = torch.where(torch.tensor(IS_VARIANCE), own.clamp_min(-1.0), own)[BUFFERS]
        torch.testing.assert_close(verdict.update[BUFFERS], expected)


@dataclass(frozen=True)
class WithoutBuffers(ExampleTrustedData):
    """The same data for the network without BatchNorm."""

    def update(self, params: Tensor, seed: int) -> Tensor:
        return 0.1 * params

    def predict(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return super().predict(_with_buffers(params))

    def predict_random(self, params: Tensor, updates: Tensor, n: int, seed: int) -> Tensor:
        rows = torch.stack([_with_buffers(update) for update in updates])
        return super().predict_random(_with_buffers(params), rows, n, seed)

    def guides(self, clients: Tensor, params: Tensor, seed: int) -> Tensor:
        return params.expand(len(clients), -1)


def _with_buffers(params: Tensor) -> Tensor:
    return torch.cat([params, torch.ones(LAYOUT.size - len(params))])


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_without_buffers_gets_the_same_bits(name: str) -> None:
    layout = Layout(LAYOUT.shapes[: len(LAYOUT.trainable)], LAYOUT.head, LAYOUT.n_trainable)
    whole = poisoned()
    params = whole.params[: layout.size]
    cohort = Cohort.of(whole.trainable(), params, layout, trusted_data=WithoutBuffers())
    defense = get(name)
    one, _ = defense(cohort, defense.init())
    other, _ = replace(defense, buffers="aggregator")(cohort, defense.init())
    assert torch.equal(one.update, other.update)


def test_the_option_is_described_and_built() -> None:
    assert describe(get("krum"))["buffers"] == "median"
    for defense in (get("krum", buffers="aggregator"), replace(get("fl-wbc"), buffers="aggregator")):
        assert defense.buffers == "aggregator"
        assert build_defense(describe(defense)) == defense
        assert "buffers='aggregator'" in repr(defense)
    parts = {"filters": [{"name": "cosdefense"}], "aggregator": {"name": "mean"}}
    assert build_defense(parts) == Defense((CosDefense(),), Mean())
    assert build_defense({**parts, "buffers": "aggregator"}).buffers == "aggregator"


def test_other_rules_are_refused() -> None:
    with (
        unchecked(),
        pytest.raises(ValueError, match=r"Defense.buffers must be one of .*'median', 'aggregator'.*, got 'mean'"),
    ):
        Defense((), Mean(), buffers="mean")  # type: ignore[arg-type]
    for table in ({"name": "krum", "buffers": "mean"}, {"filters": [], "buffers": "mean"}):
        with pytest.raises(ConfigError, match="buffers 'mean' is unknown"):
            build_defense(table)
