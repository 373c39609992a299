"""NeighborVotes against its definition, written with loops; what it rejects, and what it never rejects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cosdefense import Cohort, get
from cosdefense.filters import NeighborVotes
from cosdefense.filters.neighbor_votes import MIN_REMEMBERED, SKETCH_SIZE, NeighborMemory
from cosdefense.ops import unit_sketches
from doubles import save_and_load, weights_only

Rows = np.ndarray


def with_model(rows: Any, model: Any) -> Cohort:
    return replace(weights_only(rows), params=torch.as_tensor(model, dtype=torch.float64))


def median(values: Rows) -> float:
    return float(np.median(values))


def relative(values: Rows) -> Rows:
    positive = values[values > 0]
    typical = median(positive) if len(positive) else median(np.abs(values))
    return values / typical if typical > 0 else values


class Reference:
    """The rule as its documentation has it, for rows of few coordinates: their sketches are the rows themselves."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.past: list[tuple[int, Rows]] = []
        self.now, self.shares = 0, [0.5, 0.5]
        self.baseline: float | None = None

    def judge(self, rows: Rows, model: Rows) -> tuple[Rows, Rows]:
        n, units = len(rows), rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines, with_model = units @ units.T, units @ model / np.linalg.norm(model)
        pairs = cosines[~np.eye(n, dtype=bool)]
        typical = max(0.0, float(np.quantile(pairs, 0.75)))
        baseline = typical if self.baseline is None else self.baseline
        weights = np.ones(n)
        for i in range(n):
            others = [max(0.0, cosines[i, j] - baseline) / (1 - baseline) for j in range(n) if j != i]
            weights[i] = 1 / (1 + sum(others))
        support, with_mean = np.zeros(n), None
        if self.past:
            votes = [0.97 ** (self.now - number) for number, _ in self.past]
            crowding = [
                sum(v * max(0.0, a @ b) ** 2 for v, (_, b) in zip(votes, self.past, strict=True)) for _, a in self.past
            ]
            usual = median(np.array(crowding))
            votes = [v / max(1.0, c / usual) for v, c in zip(votes, crowding, strict=True)]
            with_mean = np.zeros(n)
            for i, unit in enumerate(units):
                near = [(v, float(unit @ b)) for v, (_, b) in zip(votes, self.past, strict=True)]
                here = [(1.0, cosines[i, j]) for j in range(n) if j != i]
                support[i] = sum(v * c**3 for v, c in near + here) / (
                    0.5 + sum(v * abs(c) ** 3 for v, c in near + here)
                )
                with_mean[i] = sum(v * c for v, c in near)
                weights[i] = min(weights[i], 1 / max(1.0, sum(v * max(0.0, c) ** 2 for v, c in near) / usual))
            full = weights.copy()
            weights = weights * np.clip(1 + support / self.tolerance, 0, 1)
            for share, agreement in zip(self.shares, (with_model, with_mean), strict=True):
                if share > 0.62:
                    weights = weights * np.clip(2 * relative(agreement) + 2, 0, 1)
            weights = weights if weights.any() else full
        decay = min(0.95, 1 - 1 / (self.now + 2))
        for which, agreement in enumerate((with_model, with_mean)):
            if agreement is not None:
                self.shares[which] = decay * self.shares[which] + (1 - decay) * float((agreement > 0).mean())
        self.baseline = typical if self.baseline is None else 0.95 * self.baseline + 0.05 * typical
        self.past += [(self.now, unit) for unit in units]
        self.now += 1
        return support, weights


def draw_round(rng: np.random.Generator, directions: Rows, malicious: int, n: int = 10) -> Rows:
    """Clients of several groups, each with its own direction; the first are malicious and reverse what they have."""
    rows = directions[rng.integers(len(directions), size=n)] + 0.15 * rng.normal(size=(n, directions.shape[1]))
    rows[:malicious] *= -1
    return rows


@pytest.mark.parametrize("tolerance", [0.1, 0.5])
def test_it_computes_what_its_documentation_says(tolerance: float) -> None:
    rng = np.random.default_rng(1)
    directions = 2 * np.eye(8, 30) + 0.3
    rule, reference, state = NeighborVotes(tolerance), Reference(tolerance), NeighborVotes().init()
    rejected = 0
    for number in range(12):
        rows, model = draw_round(rng, directions, malicious=number % 4), rng.normal(size=30) * 0.2 + 1
        judgment, state = rule(with_model(rows, model.tolist()), state)
        support, weights = reference.judge(rows, model)
        assert (-judgment.scores).tolist() == pytest.approx(support.tolist(), abs=1e-5)
        assert judgment.weights.tolist() == pytest.approx(weights.tolist(), abs=1e-5)
        rejected += int((weights == 0).sum())
    assert rejected > 0
    assert state.with_model == pytest.approx(reference.shares[0])
    assert state.with_mean == pytest.approx(reference.shares[1])


@pytest.mark.parametrize("malicious", [3, 4])
def test_reversed_updates_are_outvoted_by_those_of_recent_rounds(malicious: int) -> None:
    """Groups are orthogonal, so that a round alone says nothing: whoever reverses a group is mostly alone in it."""
    rng = np.random.default_rng(2)
    rule, state, lost, rejected = NeighborVotes(), NeighborVotes().init(), 0.0, 0.0
    for number in range(80):
        rows = draw_round(rng, 2 * np.eye(10, 60), malicious)
        judgment, state = rule(with_model(rows, [0.0] * 60), state)
        if number >= 40:
            rejected += float((judgment.weights[:malicious] == 0).double().mean()) / 40
            lost += float((judgment.weights[malicious:] == 0).double().mean()) / 40
    assert rejected > (0.85 if malicious == 3 else 0.5)
    assert lost < (0.1 if malicious == 3 else 0.2)


def test_without_an_attack_nobody_is_rejected() -> None:
    rng = np.random.default_rng(3)
    rule, state = NeighborVotes(), NeighborVotes().init()
    for _ in range(60):
        rows = draw_round(rng, 2 * np.eye(10, 60), malicious=0)
        judgment, state = rule(with_model(rows, [0.0] * 60), state)
        assert bool((judgment.weights > 0).all())


def test_a_majority_that_agrees_overrules_memory() -> None:
    rng = np.random.default_rng(5)
    rule, state = NeighborVotes(), NeighborVotes().init()
    forward = np.eye(1, 40)[0]
    for _ in range(40):
        _, state = rule(with_model((forward + 0.1 * rng.normal(size=(10, 40))), forward.tolist()), state)
    turned = -forward + 0.02 * rng.normal(size=(10, 40))
    turned[:4] *= -1
    judgment, _ = rule(with_model(turned, forward.tolist()), state)
    assert bool((judgment.weights[4:] == 1).all())
    assert float(judgment.weights[:4].max()) < 0.01


def test_a_witness_is_heard_only_while_most_agree_with_it() -> None:
    """The same round is judged with and without the model's evidence."""
    rows = np.eye(4, 8) + 0.5 * np.eye(1, 8, 7)
    rows[0, 7] = -0.5
    cohort = with_model(rows, np.eye(1, 8, 7)[0].tolist())
    _, state = NeighborVotes()(cohort, NeighborVotes().init())
    heard, _ = NeighborVotes()(cohort, replace(state, with_model=0.63, with_mean=0.0))
    unheard, _ = NeighborVotes()(cohort, replace(state, with_model=0.61, with_mean=0.0))
    assert float(heard.weights[0]) == 0
    assert float(unheard.weights[0]) > 0


def test_it_forgets_whole_rounds_and_keeps_enough_updates() -> None:
    rng, rule, state = np.random.default_rng(6), NeighborVotes(), NeighborVotes().init()
    for number in range(70):
        _, state = rule(weights_only(rng.normal(size=(9, 5)).tolist()), state)
        assert len(state.sketches) == len(state.rounds) == min(9 * (number + 1), 9 * -(-MIN_REMEMBERED // 9))
    _, state = rule(weights_only(rng.normal(size=(500, 5)).tolist()), state)
    assert state.rounds.unique().tolist() == [70]


def test_zero_updates_are_not_remembered_and_not_rejected() -> None:
    rule = NeighborVotes()
    cohort = weights_only([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    _, state = rule(cohort, rule.init())
    assert len(state.sketches) == 2
    judgment, _ = rule(cohort, state)
    assert float(judgment.weights[2]) == 1


def test_memory_survives_saving() -> None:
    rule = NeighborVotes()
    _, state = rule(weights_only([[1.0, 2.0], [0.5, -1.0]]), rule.init())
    loaded = save_and_load(state, rule)
    assert isinstance(loaded, NeighborMemory)
    assert loaded.sketches is not None
    assert torch.equal(loaded.sketches, state.sketches)
    assert (loaded.n_rounds, loaded.seed, loaded.with_model) == (1, state.seed, state.with_model)


def test_long_updates_are_compared_by_sketches_with_a_seed_of_the_first_round() -> None:
    torch.manual_seed(0)
    rows = torch.randn(3, 5 * SKETCH_SIZE)
    cohort = replace(weights_only(rows.tolist()), seed=7)
    rule = NeighborVotes()
    _, state = rule(cohort, rule.init())
    assert state.sketches.shape == (3, SKETCH_SIZE)
    _, later = rule(replace(cohort, seed=8), state)
    assert later.seed == state.seed
    assert torch.equal(later.sketches[:3], later.sketches[3:])
    _, other = rule(replace(cohort, seed=8), rule.init())
    assert not torch.equal(other.sketches, state.sketches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sketches_keep_cosines(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    rows = torch.randn(20, 50_000, dtype=torch.float64)
    rows[1] = rows[0] + 0.5 * rows[1]
    rows[2] *= 1e30
    rows = rows.to(dtype)
    sketches = unit_sketches(rows, 1024, seed=3).double()
    exact = torch.nn.functional.normalize(rows.double() / rows.double().abs().amax(1, keepdim=True), dim=1)
    error = (sketches @ sketches.T - exact @ exact.T).square().mean().sqrt()
    assert sketches.shape == (20, 1021)  # of 49 coordinates each
    assert float(error) == pytest.approx(1 / 1021**0.5, rel=0.3)


def test_sketches_of_hostile_rows_are_finite() -> None:
    rows = torch.full((3, 5000), 3e38)
    rows[1] = 0
    rows[2] = 1e-44
    sketches = unit_sketches(rows, 100, seed=0)
    assert bool(sketches.isfinite().all())
    assert float(sketches[1].abs().max()) == 0
    assert float(sketches[2].abs().max()) > 0


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1.5, float("nan")])
def test_bad_options_are_named(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance must be above 0 and at most 1, got"):
        NeighborVotes(tolerance)


def test_the_preset_takes_its_options() -> None:
    defense = get("neighbor-votes", tolerance=0.5, taper=4.0, max_mean_ratio=2.0)
    assert defense.filters == (NeighborVotes(0.5),)
    aggregator: Any = defense.aggregator
    assert (aggregator.taper, aggregator.max_mean_ratio) == (4.0, 2.0)


def test_a_single_client_is_accepted() -> None:
    rule = NeighborVotes()
    cohort: Cohort = weights_only([[1.0, 2.0]])
    judgment, state = rule(cohort, rule.init())
    assert judgment.weights.tolist() == [1.0]
    judgment, _ = rule(cohort, state)
    assert judgment.weights.tolist() == [1.0]
