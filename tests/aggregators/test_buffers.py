"""Buffers (BatchNorm statistics) are aggregated, but do not influence how updates are judged or weighted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cosdefense import Aggregator, Cohort, Filter, Layout
from cosdefense.aggregators import CenteredClipping, GeometricMedian
from cosdefense.catalog.registry import AGGREGATORS, FILTERS
from cosdefense.testing.examples import LAYOUT, ExampleTrustedData
from promises import SHORTER

N_WEIGHTS, N_BUFFERS = 900, 100
WEIGHTS = Layout((("conv.weight", (N_WEIGHTS,)),), "conv.weight", N_WEIGHTS)
WITH_BUFFERS = Layout((*WEIGHTS.shapes, ("bn.running_mean", (N_BUFFERS,))), "conv.weight", N_WEIGHTS)


def first_round_of_a_resnet() -> Cohort:
    """In the first round of a ResNet-18 the weights of an update have a norm of 0.19, its running averages one of 6."""
    rng = torch.Generator().manual_seed(0)
    weights, buffers = torch.randn(10, N_WEIGHTS, generator=rng), torch.randn(10, N_BUFFERS, generator=rng)
    rows = [0.19 * weights / weights.norm(dim=1, keepdim=True), 6.0 * buffers / buffers.norm(dim=1, keepdim=True)]
    return Cohort.of(torch.cat(rows, dim=1), torch.zeros(N_WEIGHTS + N_BUFFERS), WITH_BUFFERS)


@pytest.mark.parametrize(
    "part", [CenteredClipping(radius=0.1), CenteredClipping(radius=0.1, steps=3), GeometricMedian()]
)
def test_weights_move_as_if_there_were_no_buffers(part: Aggregator) -> None:
    cohort = first_round_of_a_resnet()
    without = Cohort.of(cohort.trainable(), torch.zeros(N_WEIGHTS), WEIGHTS)
    state, other_state = part.init(), part.init()
    for _ in range(2):
        update, state = part(cohort, state)
        expected, other_state = part(without, other_state)
        torch.testing.assert_close(update[:N_WEIGHTS], expected, rtol=1e-5, atol=1e-9)


def test_clipping_factors_of_weights_apply_to_buffers() -> None:
    # The norms are 5 and 0: the first update is clipped by 1/5, with its buffer, and the second is not.
    layout = Layout((("w", (2,)), ("bn.running_mean", (1,))), "w", 2)
    cohort = Cohort.of(torch.tensor([[3.0, 4.0, 50.0], [0.0, 0.0, 2.0]]), torch.zeros(3), layout)
    update, state = CenteredClipping(radius=1.0)(cohort, None)
    assert update.tolist() == pytest.approx([0.3, 0.4, 6.0])
    # From (0.3, 0.4) the differences have norms 4.5 and 0.5. The factors are 1/4.5 and 1.
    update, _ = CenteredClipping(radius=1.0)(cohort, state)
    assert update.tolist() == pytest.approx([0.3 + (0.6 - 0.3) / 2, 0.4 + (0.8 - 0.4) / 2, 6 + (44 / 4.5 - 4) / 2])


def test_weights_of_the_geometric_median_apply_to_buffers() -> None:
    # The geometric median of the corners of an equilateral triangle is its center, where all weights are 1/3.
    corners = [[math.cos(angle), math.sin(angle)] for angle in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    rows = torch.cat([torch.tensor(corners), torch.tensor([[3.0], [6.0], [900.0]])], dim=1)
    layout = Layout((("w", (2,)), ("bn.running_mean", (1,))), "w", 2)
    update, _ = GeometricMedian()(Cohort.of(rows, torch.zeros(3), layout), None)
    assert update.tolist() == pytest.approx([0, 0, 303], abs=1e-4)


def example() -> tuple[Cohort, Cohort]:
    """A cohort, and the same with very different buffers."""
    rng = torch.Generator().manual_seed(0)
    updates = torch.randn(11, LAYOUT.size, generator=rng) + 0.5
    updates[:3] *= -2.0
    params = torch.randn(LAYOUT.size, generator=rng)
    cohort = Cohort.of(updates, params, LAYOUT, trusted_data=ExampleTrustedData())
    changed = updates.clone()
    changed[:, LAYOUT.n_trainable :] = 1e4 * torch.randn(11, LAYOUT.size - LAYOUT.n_trainable, generator=rng)
    return cohort, replace(cohort, updates=changed)


@pytest.mark.parametrize("part", [kind(**SHORTER.get(name, {})) for name, kind in FILTERS.items()], ids=repr)
def test_no_filter_judges_buffers(part: Filter) -> None:
    state, other_state = part.init(), part.init()
    for _ in range(2):
        cohort, changed = example()
        judgment, state = part(cohort, state)
        other, other_state = part(changed, other_state)
        assert torch.equal(judgment.weights, other.weights)
        assert torch.equal(judgment.scores, other.scores)


@pytest.mark.parametrize("part", [kind() for kind in AGGREGATORS.values()], ids=repr)
def test_no_aggregator_weights_by_buffers(part: Aggregator) -> None:
    state, other_state = part.init(), part.init()
    for _ in range(2):
        cohort, changed = example()
        update, state = part(cohort, state)
        other, other_state = part(changed, other_state)
        weights = slice(0, LAYOUT.n_trainable)
        torch.testing.assert_close(update[weights], other[weights], rtol=1e-6, atol=0)
