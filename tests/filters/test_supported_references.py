"""SupportedReferences against its definition, written with loops; what it rejects, and what it never rejects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cosdefense import Cohort, get
from cosdefense.filters import SupportedReferences
from cosdefense.filters.recent_updates import MIN_REMEMBERED, SKETCH_SIZE, ReferenceMemory
from cosdefense.ops import unit_sketches
from doubles import save_and_load, weights_only

Rows = np.ndarray


class Remembered(NamedTuple):
    number: int
    unit: Rows
    with_model: float
    turns: float
    in_round: float


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

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high, self.now = low, high, 0
        self.past: list[Remembered] = []
        self.models: list[Rows] = []
        self.nearest: list[float] = []
        self.baseline: float | None = None
        self.tolerances: list[float] = []  # in the last round, of the model, its movement and the common direction

    def judge(self, rows: Rows, model: Rows) -> Rows:
        n, units = len(rows), rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines, with_model = units @ units.T, units @ model / np.linalg.norm(model)
        typical = max(0.0, float(np.quantile(cosines[~np.eye(n, dtype=bool)], 0.75)))
        baseline = typical if self.baseline is None else self.baseline
        votes = np.ones(n)
        for i in range(n):
            others = [max(0.0, cosines[i, j] - baseline) / (1 - baseline) for j in range(n) if j != i]
            votes[i] = 1 / (1 + sum(others))
        agreement = [
            sum(votes[j] * cosines[i, j] for j in range(n) if j != i) / sum(votes[j] for j in range(n) if j != i)
            for i in range(n)
        ]
        above = np.array(agreement) - median(np.array(agreement))
        in_round = np.array([min(1, max(0, 0.5 + a / (2 * median(np.abs(above))))) for a in above])
        weights, turns, nearest = votes.copy(), np.zeros(n), list[float]()
        if self.past:
            ages = np.array([0.97 ** (self.now - one.number) for one in self.past])
            usual = median(np.array([self.crowd(one.unit, ages) for one in self.past]))
            old = np.array([
                age / max(1.0, self.crowd(one.unit, ages) / usual) * one.in_round
                for age, one in zip(ages, self.past, strict=True)
            ])  # fmt: skip
            votes = np.array(
                [min(v, 1 / max(1.0, self.crowd(u, ages) / usual)) for v, u in zip(votes, units, strict=True)]
            )
            turns = self.turn(units, model, ages)
            nearest = [sorted(abs(unit @ one.unit) for one in self.past)[-3] for unit in units]
            resemblance = self.resemble(nearest)
            in_round = in_round * resemblance
            trust = self.trust(units, with_model, turns, np.concatenate([old, votes * in_round]))[-n:]
            weights = votes * trust * resemblance
            weights = weights if weights.any() else votes
        self.baseline = typical if self.baseline is None else 0.95 * self.baseline + 0.05 * typical
        self.past += [Remembered(self.now, *one) for one in zip(units, with_model, turns, in_round, strict=True)]
        self.models.append(model)
        self.nearest += nearest
        self.now += 1
        return weights

    def crowd(self, unit: Rows, ages: Rows) -> float:
        return float(sum(age * max(0.0, unit @ one.unit) ** 2 for age, one in zip(ages, self.past, strict=True)))

    def turn(self, units: Rows, model: Rows, ages: Rows) -> Rows:
        turns, weights = np.zeros(len(units)), np.zeros(len(units))
        for i, unit in enumerate(units):
            for age, one in zip(ages, self.past, strict=True):
                move = model - self.models[one.number]
                similar = unit @ one.unit
                weight = age * max(0.0, (abs(similar) - 0.07) / 0.93) ** 4
                turns[i] -= weight * (unit - np.sign(similar) * one.unit) @ move / np.linalg.norm(move)
                weights[i] += weight
        result: Rows = turns / (weights + median(weights) / 2)
        return result

    def trust(self, units: Rows, with_model: Rows, turns: Rows, votes: Rows) -> Rows:
        everyone = [one.unit for one in self.past] + list(units)
        model = relative(np.array([one.with_model for one in self.past] + list(with_model)))
        movement = relative(np.array([one.turns for one in self.past] + list(turns)))
        shares = [self.share(votes, model > 0), self.share(votes, movement > 0)]
        trusted = votes * self.weigh([model, movement], shares)
        kept = np.ones(len(everyone))
        for _ in range(5):
            direction = sum(t * k * unit for t, k, unit in zip(trusted, kept, everyone, strict=True))
            own = trusted * kept
            common = relative(np.array([unit @ direction - w for w, unit in zip(own, everyone, strict=True)]))
            kept = np.array([min(1, max(0, 0.5 + z)) for z in common])
        return self.weigh([model, movement, common], [*shares, self.share(trusted, common > 0.3)])

    def share(self, votes: Rows, agrees: Rows) -> float:
        return float((votes[agrees].sum() + 5) / (votes.sum() + 10))

    def weigh(self, agreements: list[Rows], shares: list[float]) -> Rows:
        """2 + 2 z / t of every reference, multiplied."""
        weights, self.tolerances = np.ones(len(agreements[0])), []
        step = self.high - self.low
        for number, (agreement, share) in enumerate(zip(agreements, shares, strict=True)):
            support = share - 2 * (max(shares) - share)
            tolerance = 0.5 * 10 ** min(1, max(0, (self.high - support) / step))
            if number < 2:
                tolerance = min(tolerance, 1.5 * (5 / 1.5) ** min(1, max(0, (self.high + step - share) / step)))
            self.tolerances.append(tolerance)
            weights *= np.array([min(1, max(0, 2 + 2 * z / self.tolerances[-1])) for z in agreement])
        return weights

    def resemble(self, nearest: list[float]) -> Rows:
        if len(self.nearest) < 30:
            return np.ones(len(nearest))
        typical = float(np.quantile(self.nearest, 0.6))
        clear = min(1, max(0, (typical - 0.3) / 0.3))
        return np.array([1 - clear * (1 - min(1, max(0, (near / typical - 0.55) / 0.2))) for near in nearest])


def draw_round(rng: np.random.Generator, directions: Rows, malicious: int, n: int = 10) -> Rows:
    """Clients of several groups, each with its own direction; the first are malicious and reverse what they have."""
    rows = directions[rng.integers(len(directions), size=n)] + 0.15 * rng.normal(size=(n, directions.shape[1]))
    rows[:malicious] *= -1
    return rows


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.57), (0.6, 0.9)])
def test_it_computes_what_its_documentation_says(low: float, high: float) -> None:
    """Clients of eight groups go towards targets of their own; the model goes with them, and is sometimes elsewhere."""
    rng = np.random.default_rng(1)
    targets, model = 3 * np.eye(8, 30) + 0.4, 0.3 * rng.normal(size=30)
    rule, reference, state = SupportedReferences(low, high), Reference(low, high), SupportedReferences().init()
    rejected, tolerances = 0, []
    for number in range(40):
        rows = targets[rng.integers(8, size=10)] - model + 0.3 * rng.normal(size=(10, 30))
        rows[: number % 4] *= -1
        if number > 12:
            rows[0] = rng.normal(size=30)  # resembles nothing
        judgment, state = rule(with_model(rows, model.tolist()), state)
        weights = reference.judge(rows, model)
        assert judgment.weights.tolist() == pytest.approx(weights.tolist(), abs=1e-5)
        rejected += int((weights == 0).sum())
        tolerances.append(reference.tolerances)
        model = model + 0.1 * weights @ rows / weights.sum() if number != 20 else 0.3 * rng.normal(size=30)
    assert rejected > 0
    by_model, movement, common = zip(*tolerances[1:], strict=True)
    assert min(movement) < 0.6 < 4.9 < max(movement)
    assert min(by_model) < 3.2 < 4.9 < max(by_model)
    assert min(common) == 0.5
    if low > 0.5:  # with the defaults most agree with the common direction in every round
        assert max(common) > 3


@pytest.mark.parametrize(("malicious", "low", "high"), [(3, 0.58, 0.66), (4, 0.5, 0.56)])
def test_reversed_updates_oppose_the_common_direction(malicious: int, low: float, high: float) -> None:
    """Groups of clients are nearly orthogonal, so that a round alone says little."""
    rng = np.random.default_rng(2)
    rule, state, lost, rejected = SupportedReferences(low, high), SupportedReferences().init(), 0.0, 0.0
    for number in range(60):
        rows = draw_round(rng, 2 * np.eye(10, 60) + 0.2, malicious)
        judgment, state = rule(with_model(rows, [0.0] * 60), state)
        if number >= 20:
            rejected += float((judgment.weights[:malicious] == 0).double().mean()) / 40
            lost += float((judgment.weights[malicious:] == 0).double().mean()) / 40
    assert rejected > 0.8
    assert lost < 0.05


def test_without_an_attack_nobody_is_rejected() -> None:
    rng = np.random.default_rng(3)
    rule, state = SupportedReferences(), SupportedReferences().init()
    for _ in range(60):
        rows = draw_round(rng, 2 * np.eye(10, 60) + 0.2, malicious=0)
        judgment, state = rule(with_model(rows, [0.0] * 60), state)
        assert bool((judgment.weights > 0).all())


def train(forge: Callable[[np.random.Generator, Rows, Rows], Rows], n_rounds: int = 80) -> tuple[Rows, Rows]:
    """Ten groups of clients, one by their data, whose loss is less along all of them. Three of ten are malicious.

    Returns which shares of the malicious and of the honest updates are not rejected in the last 40 rounds.
    """
    rng, kept = np.random.default_rng(7), []
    targets, model = 3 * np.eye(10, 60) + 0.3, np.zeros(60)
    rule, state = SupportedReferences(), SupportedReferences().init()
    for _ in range(n_rounds):
        honest = 0.1 * (targets[rng.integers(10, size=10)] - model) + 0.03 * rng.normal(size=(10, 60))
        rows = np.concatenate([forge(rng, honest[:3], model), honest[3:]])
        judgment, state = rule(with_model(rows, model.tolist()), state)
        kept.append((judgment.weights > 0).numpy())
        model = model + honest[3:].mean(axis=0) / 4
    late = np.array(kept[-40:])
    return late[:, :3].mean(), late[:, 3:].mean()


def test_reversed_updates_are_found_where_most_of_their_group_are_reversed() -> None:
    """All malicious clients have the data of one group, of which they are three quarters."""
    malicious, honest = train(
        lambda rng, own, model: -0.1 * (3 * np.eye(1, 60) + 0.3 - model + 0.3 * rng.normal(size=(3, 60)))
    )
    assert malicious < 0.05
    assert honest > 0.9


def test_a_rollback_is_found() -> None:
    past: list[Rows] = []

    def roll_back(rng: np.random.Generator, own: Rows, model: Rows) -> Rows:
        past.append(model)
        back = past[max(0, len(past) - 20)] - model
        return np.tile(back, (3, 1)) + 1e-6 * rng.normal(size=(3, 60))

    malicious, honest = train(roll_back)
    assert malicious < 0.05
    assert honest > 0.9


def test_noise_that_resembles_nothing_loses_its_vote() -> None:
    malicious, honest = train(lambda rng, own, model: rng.normal(size=(3, 60)))
    assert malicious < 0.2
    assert honest > 0.8


def test_where_updates_agree_with_nothing_no_reference_counts() -> None:
    """Rows in random directions: the model and their own mean are no evidence against any of them."""
    rng = np.random.default_rng(4)
    rule, state = SupportedReferences(), SupportedReferences().init()
    for _ in range(60):
        judgment, state = rule(with_model(rng.normal(size=(10, 2000)), rng.normal(size=2000).tolist()), state)
    assert float(judgment.weights.min()) > 0.2
    assert float(judgment.weights.mean()) > 0.8


def test_a_majority_that_agrees_overrules_memory() -> None:
    rng = np.random.default_rng(5)
    rule, state = SupportedReferences(), SupportedReferences().init()
    forward = np.eye(1, 40)[0]
    for _ in range(40):
        _, state = rule(with_model((forward + 0.1 * rng.normal(size=(10, 40))), forward.tolist()), state)
    turned = -forward + 0.02 * rng.normal(size=(10, 40))
    turned[:4] *= -1
    judgment, _ = rule(with_model(turned, forward.tolist()), state)
    assert bool((judgment.weights[4:] == 1).all())
    assert float(judgment.weights[:4].max()) < 0.01


def test_the_model_counts_only_while_most_agree_with_it() -> None:
    """The same round is judged after rounds that agreed with the model, and after rounds that did not."""
    rng = np.random.default_rng(6)
    rows = np.concatenate([np.eye(8, 40), -0.5 * np.ones((8, 1))], axis=1) * np.array([*[1.0] * 40, -1.0])
    rows[0, 40] = -0.5
    model = np.eye(1, 41, 40)[0]
    weights = {}
    for sign in (1, -1):
        state = SupportedReferences().init()
        for _ in range(10):
            past = rng.normal(size=(10, 41)) / 41**0.5
            past[:, 40] = sign * rng.choice([0.5, 0.5, 0.5, -0.5], size=10)
            _, state = SupportedReferences()(with_model(past, model.tolist()), state)
        judgment, _ = SupportedReferences()(with_model(rows, model.tolist()), state)
        weights[sign] = judgment.weights.tolist()
    assert weights[1][0] == 0
    assert min(weights[1][1:]) > 0
    assert min(weights[-1][1:]) < 1  # the direction of those rounds opposes them


def test_a_reference_with_less_support_than_another_is_tolerant_but_for_a_limit() -> None:
    """The model and its movement have the limit where many support them, the common direction has none."""
    agreements = [torch.ones(1, dtype=torch.float64)] * 3
    for shares, tolerances in [
        ([0.65, 0.9, 0.65], [1.5, 0.5, 5.0]),
        ([0.9, 0.65, 0.65], [0.5, 1.5, 5.0]),
        ([0.57, 0.9, 0.57], [5.0, 0.5, 5.0]),
    ]:
        found = 1 / SupportedReferences()._apply_tolerance(agreements, shares).flatten()
        assert found.tolist() == pytest.approx(tolerances)


def test_it_forgets_whole_rounds_and_keeps_enough_updates() -> None:
    rng, rule, state = np.random.default_rng(6), SupportedReferences(), SupportedReferences().init()
    for number in range(70):
        _, state = rule(weights_only(rng.normal(size=(9, 5)).tolist()), state)
        assert len(state.sketches) == len(state.rounds) == min(9 * (number + 1), 9 * -(-MIN_REMEMBERED // 9))
    _, state = rule(weights_only(rng.normal(size=(500, 5)).tolist()), state)
    assert state.rounds.unique().tolist() == [70]


def test_zero_updates_are_not_remembered_and_not_rejected() -> None:
    rule = SupportedReferences()
    cohort = weights_only([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    _, state = rule(cohort, rule.init())
    assert len(state.sketches) == 2
    judgment, _ = rule(cohort, state)
    assert float(judgment.weights[2]) == 1


def test_memory_survives_saving() -> None:
    rule = SupportedReferences()
    _, state = rule(weights_only([[1.0, 2.0], [0.5, -1.0]]), rule.init())
    loaded = save_and_load(state, rule)
    assert isinstance(loaded, ReferenceMemory)
    assert loaded.sketches is not None
    assert loaded.with_model is not None
    assert torch.equal(loaded.sketches, state.sketches)
    assert (loaded.n_rounds, loaded.seed) == (1, state.seed)
    assert torch.equal(loaded.with_model, state.with_model)


def test_long_updates_are_compared_by_sketches_with_a_seed_of_the_first_round() -> None:
    torch.manual_seed(0)
    rows = torch.randn(3, 5 * SKETCH_SIZE)
    cohort = replace(weights_only(rows.tolist()), seed=7)
    rule = SupportedReferences()
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
    assert sketches.shape == (20, 1024)
    assert float(error) == pytest.approx(1 / 1024**0.5, rel=0.3)


def test_neighbors_that_are_large_together_do_not_share_a_place() -> None:
    """One filter of a network holds most of an update: sums of neighbors would have errors of 0.2."""
    torch.manual_seed(2)
    rows = 0.01 * torch.randn(20, 60_000)
    rows[:, 5_000:6_000] = torch.randn(20, 1_000)
    sketches, exact = unit_sketches(rows, 1024, seed=4), torch.nn.functional.normalize(rows)
    error = (sketches @ sketches.T - exact @ exact.T).square().mean().sqrt()
    assert float(error) < 0.04


def test_sketches_of_hostile_rows_are_finite() -> None:
    rows = torch.full((3, 5000), 3e38)
    rows[1] = 0
    rows[2] = 1e-44
    sketches = unit_sketches(rows, 100, seed=0)
    assert bool(sketches.isfinite().all())
    assert float(sketches[1].abs().max()) == 0
    assert float(sketches[2].abs().max()) > 0


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.6), (0.6, 0.6), (0.7, 0.6), (0.6, 1.1), (float("nan"), 0.6)])
def test_bad_options_are_named(low: float, high: float) -> None:
    with pytest.raises(ValueError, match=r"SupportedReferences needs 0\.5 <= low < high <= 1, got low"):
        SupportedReferences(low, high)


def test_a_round_remembers_little_of_what_opposes_most_of_it() -> None:
    rng = np.random.default_rng(8)
    rows = 0.3 * np.ones((10, 60)) / 60**0.5 + rng.normal(size=(10, 60)) / 60**0.5
    rows[:3] = -0.5 / 60**0.5 + 0.85 * rng.normal(size=(3, 60)) / 60**0.5  # their own noise: they are no duplicates
    _, state = SupportedReferences()(weights_only(rows.tolist()), SupportedReferences().init())
    assert float(state.in_round[:3].max()) == 0
    assert float(state.in_round[3:].mean()) > 0.5


def test_the_preset_takes_its_options() -> None:
    defense = get("factions", low=0.6, high=0.7, max_mean_ratio=2.0)
    assert defense.filters == (SupportedReferences(0.6, 0.7),)
    aggregator: Any = defense.aggregator
    assert aggregator.max_mean_ratio == 2.0


def test_a_single_client_is_accepted() -> None:
    rule = SupportedReferences()
    cohort: Cohort = weights_only([[1.0, 2.0]])
    judgment, state = rule(cohort, rule.init())
    assert judgment.weights.tolist() == [1.0]
    judgment, _ = rule(cohort, state)
    assert judgment.weights.tolist() == [1.0]


@pytest.mark.parametrize("value", [1e38, float("inf"), float("nan")])
def test_a_model_that_left_the_range_of_numbers_does_not_decide(value: float) -> None:
    rng, rule, state = np.random.default_rng(9), SupportedReferences(), SupportedReferences().init()
    for number in range(6):
        model = np.full(60, value if number > 2 else 1.0 + number)
        judgment, state = rule(with_model(draw_round(rng, 2 * np.eye(10, 60) + 0.2, 0), model.tolist()), state)
        assert bool(judgment.weights.isfinite().all())
        assert float(judgment.weights.sum()) > 3


def test_a_memory_of_an_earlier_version_is_begun_anew() -> None:
    rows = np.random.default_rng(4).normal(size=(10, 30))
    filter_, model = SupportedReferences(), np.ones(30)
    _, memory = filter_(with_model(rows, model), filter_.init())
    earlier = replace(memory, models=None, turns=None)
    judgment, after = filter_(with_model(rows, model), earlier)
    assert judgment.weights.tolist() == filter_(with_model(rows, model), filter_.init())[0].weights.tolist()
    assert len(after.sketches) == len(after.in_round) == 10
    filter_(with_model(rows, model), after)
