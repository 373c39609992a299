"""FLDetector against its definition: the Hessian's estimate, prediction errors, groups of scores, removal."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import Cohort, Layout, Need, get
from cosdefense.core import ClientTable, pack, unpack
from cosdefense.filters import FLDetector
from cosdefense.filters.fldetector import MISSING, Memory, hessian_product, prediction_errors
from cosdefense.ops import count_groups, split_in_two


def table(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_pinned_hessian() -> None:
    steps, changes = table([[1, 0], [1, 1]]), table([[2, 0], [2, 0.5]])
    for vector, expected in (([1.0, 1.0], [2, 0.5]), ([0.5, -1.0], [1.553846, -1.053846])):
        found = hessian_product(steps, changes, torch.tensor(vector, dtype=torch.float64))
        assert found is not None
        assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_pinned_errors() -> None:
    """The card's gradients as updates: the opposite sign everywhere."""
    last = ClientTable.empty().with_rows(torch.arange(4), -table([[1, 0], [0, 1], [1, 1], [2, 2]]))
    # One pair of step and change whose estimate is a multiple of the identity: B · step = (0.1, −0.1).
    step = torch.tensor([1.0, -1.0], dtype=torch.float64)
    memory = Memory(last, ClientTable.empty(), torch.zeros(2), step, (step,), (0.1 * step,))
    now = -table([[1.1, 0], [0.1, 0.9], [1, 0.8], [-2, -2]])
    errors = prediction_errors(now, torch.arange(4), memory, torch.ones(4, dtype=torch.bool))
    assert errors.tolist() == pytest.approx([0.016949, 0, 0.023970, 0.959081], abs=1e-6)
    absent = prediction_errors(now, torch.tensor([0, 1, 2, 9]), memory, torch.ones(4, dtype=torch.bool))
    assert (absent == MISSING).tolist() == [False, False, False, True]  # client 9 was not there


def slow_hessian(steps: Tensor, changes: Tensor) -> npt.NDArray[np.float64]:
    """B by one BFGS update after the other, from the last pair's multiple of the identity."""
    s, y = steps.numpy(), changes.numpy()
    estimate: npt.NDArray[np.float64] = (y[-1] @ s[-1]) / (s[-1] @ s[-1]) * np.eye(s.shape[1])
    for step, change in zip(s, y, strict=True):
        moved = estimate @ step
        estimate = estimate - np.outer(moved, moved) / (step @ moved) + np.outer(change, change) / (change @ step)
    return estimate


@pytest.mark.parametrize("seed", range(5))
def test_slow_twin_of_the_hessian(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, generator=rng, dtype=torch.float64)
    hessian = root @ root.T + torch.eye(6, dtype=torch.float64)  # positive definite: every change agrees with its step
    steps = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    vector = torch.randn(6, generator=rng, dtype=torch.float64)
    found = hessian_product(steps, steps @ hessian, vector)
    assert found is not None
    assert found.tolist() == pytest.approx((slow_hessian(steps, steps @ hessian) @ vector.numpy()).tolist(), rel=1e-9)


def test_no_prediction_from_dependent_steps() -> None:
    vector = torch.ones(2, dtype=torch.float64)
    assert hessian_product(table([[1, 0], [1, 0]]), table([[0, 0], [0, 0]]), vector) is None  # nothing changed
    assert hessian_product(table([[1, 0], [0, 0]]), table([[1, 1], [2, 2]]), vector) is None  # the model stood still
    assert hessian_product(table([[0, 0], [1, 0]]), table([[1, 1], [2, 2]]), vector) is None


def slow_within(values: list[float], k: int) -> float:
    """The least sum of squares over all ways to cut the sorted values into k groups."""
    ordered, best = sorted(values), float("inf")
    for cuts in itertools.combinations(range(1, len(ordered)), k - 1):
        groups = [ordered[a:b] for a, b in itertools.pairwise((0, *cuts, len(ordered)))]
        best = min(best, sum(sum((x - sum(g) / len(g)) ** 2 for x in g) for g in groups))
    return best


def slow_count(values: list[float], most: int, reference: list[list[float]]) -> int:
    gaps, deviations = list[float](), list[float]()
    for k in range(1, min(most, len(values)) + 1):
        own = max(slow_within(values, k), 1e-24)
        others = np.array([max(slow_within(row, k), 1e-24) for row in reference])
        gaps.append(float(np.log(others.mean()) - np.log(own)))
        deviations.append(float(np.sqrt(1 + 1 / len(reference)) * np.log(others).std()))
    for k in range(1, len(gaps)):
        if gaps[k - 1] - gaps[k] + deviations[k] >= 0:
            return k
    return len(gaps)


eighths = st.lists(st.integers(0, 8).map(lambda i: i / 8), min_size=2, max_size=8)


@settings(max_examples=30)
@given(eighths)
def test_slow_twin_of_the_groups(values: list[float]) -> None:
    scores = torch.tensor(values, dtype=torch.float64)
    reference = torch.rand(4, len(values), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = count_groups(scores, 5, 4, torch.Generator().manual_seed(3))
    assert found == slow_count(values, 5, reference.tolist())
    higher = split_in_two(scores)
    if len(set(values)) > 1:
        low, high = scores[~higher], scores[higher]
        spread = float((low - low.mean()).square().sum() + (high - high.mean()).square().sum())
        assert spread == pytest.approx(slow_within(values, 2), abs=1e-12)
        assert float(low.max()) < float(high.min())
    else:
        assert not bool(higher.any())


LAYOUT = Layout((("w", (6,)), ("running_mean", (2,))), "w", 6)


def federation(rounds: int, noise: float = 1e-4, *, consistent: bool = False) -> list[Cohort]:
    """Ten clients that minimize a quadratic each. Three send noise instead, or the same vector in every round."""
    n, malicious = 10, 3
    rng = torch.Generator().manual_seed(0)
    hessian = torch.diag(torch.linspace(0.5, 1.5, 6, dtype=torch.float64))
    targets = 1 + 0.1 * torch.randn(n, 6, generator=rng, dtype=torch.float64)
    params, cohorts = torch.zeros(8, dtype=torch.float64), list[Cohort]()
    for number in range(rounds):
        rows = torch.zeros(n, 8, dtype=torch.float64)
        rows[:, :6] = -0.05 * (params[:6] - targets) @ hessian
        rows[:, :6] += noise * torch.randn(n, 6, generator=rng, dtype=torch.float64)  # of the batches
        rows[:, 6:] = 1e6  # buffers count in nothing
        forged = 0.05 * torch.randn(malicious, 6, generator=rng, dtype=torch.float64)
        rows[:malicious, :6] = 0.05 if consistent else forged
        order = torch.randperm(n, generator=rng)
        cohorts.append(Cohort.of(rows[order], params, LAYOUT, order, seed=number))
        params = params + rows.mean(dim=0)
    return cohorts


def removed_after(cohorts: list[Cohort], rule: FLDetector) -> set[int]:
    state = rule.init()
    for cohort in cohorts:
        judgment, state = rule(cohort, state)
    return set(cohort.clients[~judgment.weights.bool()].tolist())


def test_inconsistent_clients_are_removed_for_good() -> None:
    rule = FLDetector(window=3)
    assert removed_after(federation(rounds=6), rule) == set()  # twice the window is not over
    assert removed_after(federation(rounds=7), rule) == {0, 1, 2}
    assert removed_after(federation(rounds=14), rule) >= {0, 1, 2}


def test_consistent_clients_pass() -> None:
    """Clients that send the same in every round are easier to predict than honest ones with noisy batches."""
    assert not removed_after(federation(rounds=14, noise=0.02, consistent=True), FLDetector(window=3)) & {0, 1, 2}


def test_rows_in_another_order_and_a_saved_state_change_nothing() -> None:
    rule, plain, shuffled = FLDetector(window=3), FLDetector().init(), FLDetector().init()
    for cohort in federation(rounds=10):
        first, plain = rule(cohort, plain)
        flipped = replace(cohort, updates=cohort.updates.flip(0), clients=cohort.clients.flip(0))
        second, shuffled = rule(flipped, shuffled)
        assert torch.equal(first.weights, second.weights.flip(0))
        assert torch.equal(first.scores, second.scores.flip(0))
        packed, tensors = pack(plain)
        plain = unpack(json.loads(json.dumps(packed)), tensors, rule.init())


def test_sampling_leaves_nothing_to_predict() -> None:
    """Other clients in every round: nobody is ever judged."""
    cohorts = [replace(c, clients=c.clients + 100 * (i % 2)) for i, c in enumerate(federation(rounds=20))]
    assert removed_after(cohorts, FLDetector(window=3)) == set()
    assert {Need.CLIENT_MEMORY, Need.FULL_PARTICIPATION} == get("fldetector").needs


@pytest.mark.parametrize(("option", "least"), [("window", 1), ("max_groups", 2), ("draws", 1), ("capacity", 1)])
def test_options_are_checked(option: str, least: int) -> None:
    with pytest.raises(ValueError, match=rf"FLDetector\.{option} must be at least {least}, got 0"):
        FLDetector(**{option: 0})
