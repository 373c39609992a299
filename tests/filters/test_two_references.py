"""TwoReferences against its description, by hand and by a slow twin."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean
from cosdefense.attacks import NoiseCamouflage, SignFlip
from cosdefense.filters import NearDuplicates, TwoReferences
from cosdefense.filters.two_references import ReferenceMemory
from doubles import save_and_load, slow_cosine, slow_dot, weights_only

RIGHT = torch.tensor([1.0, 0.0])


def remembers(*mean: float, n_rounds: int = 100) -> ReferenceMemory:
    return ReferenceMemory(torch.tensor(mean), n_rounds, baseline=0.9)


def with_model(rows: list[list[float]], model: list[float]) -> Cohort:
    cohort = weights_only(rows)
    return replace(cohort, params=torch.tensor(model).to(cohort.params))


# Four updates at right angles or more, so that no majority of them agrees.
ROWS = [[1.0, 0.2], [0.2, 1.0], [0.2, -1.0], [-1.0, 0.1]]


def test_what_opposes_both_references_is_rejected() -> None:
    judgment, _ = TwoReferences()(with_model(ROWS, [1.0, 0.0]), remembers(1.0, 0.0))
    assert judgment.weights.tolist() == [1, 1, 1, 0]
    assert judgment.scores.argmax() == 3


@pytest.mark.parametrize(("mean", "model"), [([-1.0, 0.0], [1.0, 0.0]), ([1.0, 0.0], [-1.0, 0.0])])
def test_what_agrees_with_one_reference_is_accepted(mean: list[float], model: list[float]) -> None:
    judgment, _ = TwoReferences()(with_model(ROWS, model), remembers(*mean))
    assert min(judgment.weights.tolist()) == 1


def test_the_weight_falls_gradually() -> None:
    # Cosines with (1, 0): 0.8, 0.6, −0.1, in units of the typical positive one, 0.7.
    rows = [[0.8, 0.6], [0.6, -0.8], [-0.1, 0.99**0.5]]
    judgment, _ = TwoReferences(tolerance=0.3)(with_model(rows, [1.0, 0.0]), remembers(1.0, 0.0))
    assert judgment.weights[2].item() == pytest.approx(1 - 0.1 / 0.7 / 0.3, abs=1e-5)
    strict, _ = TwoReferences(tolerance=0.1)(with_model(rows, [1.0, 0.0]), remembers(1.0, 0.0))
    assert strict.weights[2].item() == 0


def test_where_all_oppose_nobody_is_rejected() -> None:
    rows = [[-1.0, 2.0], [-1.0, -2.0]]
    judgment, _ = TwoReferences()(with_model(rows, [1.0, 0.0]), remembers(1.0, 0.0))
    assert min(judgment.weights.tolist()) > 0


def test_a_majority_that_agrees_overrules_what_is_remembered() -> None:
    rows = [[-1.0, 0.1], [-1.0, 0.0], [-1.0, -0.1], [1.0, 0.0], [2.0, 0.0]]
    judgment, _ = TwoReferences()(with_model(rows, [1.0, 0.0]), remembers(1.0, 0.0))
    assert judgment.weights.tolist() == [1, 1, 1, 0, 0]  # with full votes, although they are near-duplicates


def test_half_of_the_round_is_no_majority() -> None:
    rows = [[-1.0, 0.1], [-1.0, 0.0], [1.0, 0.1], [1.0, -0.1]]
    judgment, _ = TwoReferences()(with_model(rows, [1.0, 0.0]), remembers(1.0, 0.0))
    assert [weight > 0 for weight in judgment.weights.tolist()] == [False, False, True, True]


def test_near_duplicates_share_a_vote() -> None:
    rows = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 0.0, 2.0]]
    cohort = with_model(rows, [1.0, 0.0, 0.0])
    judgment, _ = TwoReferences()(cohort, ReferenceMemory(torch.tensor([1.0, 0.0, 0.0]), 9, baseline=0.2))
    shared, _ = NearDuplicates()(cohort, 0.2)
    assert judgment.weights.tolist() == pytest.approx(shared.weights.tolist())
    assert judgment.weights[0] < 0.6


def slow_mean(rows: list[list[float]], votes: list[float]) -> list[float]:
    """The mean that a round adds: norms up to the median, tapered off beyond three medians."""
    norms = [slow_dot(row, row) ** 0.5 for row in rows]
    median = statistics.median(norm for norm in norms if norm > 0)
    total = [0.0] * len(rows[0])
    for row, norm, vote in zip(rows, norms, votes, strict=True):
        if norm > 0:
            length = min(norm, median) * min(1.0, 3 * median / norm) ** 2 / median
            total = [a + vote * length * b / norm for a, b in zip(total, row, strict=True)]
    return [a / sum(votes) for a in total]


def test_the_running_mean_is_one_of_all_updates() -> None:
    rows = [[3.0, 4.0], [-1.0, 0.0], [0.0, -40.0], [0.0, 0.0], [0.5, 0.5]]
    cohort = with_model(rows, [1.0, 0.0])
    filter_ = TwoReferences(decay=0.9)
    _, first = filter_(cohort, filter_.init())
    shared, _ = NearDuplicates()(cohort, None)
    expected = slow_mean(rows, shared.weights.tolist())
    assert first.mean.tolist() == pytest.approx(expected, abs=1e-6)
    assert first.n_rounds == 1
    judgment, later = filter_(cohort, remembers(0.3, 0.4, n_rounds=1000))  # old enough for the decay
    assert judgment.weights[1] == 0  # a rejected update counts all the same
    shared, _ = NearDuplicates()(cohort, 0.9)
    new = slow_mean(rows, shared.weights.tolist())
    assert later.mean.tolist() == pytest.approx(
        [0.9 * a + 0.1 * b for a, b in zip((0.3, 0.4), new, strict=True)], abs=1e-6
    )


def test_the_first_rounds_are_forgotten_sooner() -> None:
    up, right = with_model([[0.0, 1.0]], [1.0, 0.0]), with_model([[1.0, 0.0]], [1.0, 0.0])
    _, state = TwoReferences()(up, TwoReferences().init())
    _, state = TwoReferences()(right, state)  # after one round 0.3 / 1.3 of it is kept
    assert state.mean.tolist() == pytest.approx([1 / 1.3, 0.3 / 1.3])


def test_scores_are_the_larger_relative_cosine_negated() -> None:
    mean, model = [0.3, 1.0], [1.0, -0.2]
    judgment, _ = TwoReferences()(with_model(ROWS, model), remembers(*mean))

    def relative(reference: list[float]) -> list[float]:
        values = [slow_cosine(row, reference) for row in ROWS]
        return [value / statistics.median(v for v in values if v > 0) for value in values]

    expected = [-max(pair) for pair in zip(relative(mean), relative(model), strict=True)]
    assert judgment.scores.tolist() == pytest.approx(expected, abs=1e-5)


def test_zeros_change_nothing_that_is_remembered() -> None:
    state = remembers(1.0, 0.0)
    judgment, after = TwoReferences()(weights_only([[0.0, 0.0], [0.0, 0.0]]), state)
    assert torch.equal(after.mean, RIGHT)
    assert after.n_rounds == state.n_rounds
    assert min(judgment.weights.tolist()) > 0


def test_a_model_of_zeros_is_no_reference() -> None:
    judgment, _ = TwoReferences()(with_model(ROWS, [0.0, 0.0]), remembers(1.0, 0.0))
    assert judgment.weights.tolist() == [1, 1, 1, 0]


def test_memory_can_be_saved() -> None:
    _, state = TwoReferences()(weights_only(ROWS), TwoReferences().init())
    loaded = save_and_load(state, TwoReferences())
    assert torch.equal(loaded.mean, state.mean)
    assert (loaded.n_rounds, loaded.baseline) == (state.n_rounds, state.baseline)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.0}, "TwoReferences.tolerance must be positive, got 0.0"),
        ({"decay": 1.0}, r"TwoReferences.decay must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TwoReferences(**options)


@pytest.mark.parametrize("attack", [SignFlip(1.0), NoiseCamouflage(1.0)], ids=lambda a: type(a).__name__)
def test_the_direction_of_many_rounds_shows_what_one_round_does_not(attack: SignFlip | NoiseCamouflage) -> None:
    """Honest updates are a tenth of a common direction and their own noise: a round alone hardly tells them apart."""
    layout = Layout.of(torch.nn.Linear(400, 1, bias=False))
    generator = torch.Generator().manual_seed(0)
    common = torch.nn.functional.normalize(torch.randn(400, generator=generator), dim=0)
    malicious = torch.arange(10) < 3
    defense, rejected, lost = Defense((TwoReferences(),), Mean()), 0.0, 0.0
    memory, params = defense.init(), 0.1 * common
    for number in range(120):
        noise = torch.nn.functional.normalize(torch.randn(10, 400, generator=generator), dim=1)
        cohort = Cohort.of(0.25 * common + noise, params, layout, seed=number)
        forged, _ = attack.forge(cohort, malicious, attack.init())
        updates = torch.where(malicious[:, None], forged, cohort.updates)
        verdict, memory = defense(replace(cohort, updates=updates), memory)
        params = params + verdict.update
        if number >= 60:
            rejected += float((verdict.weights[:3] < 0.5).float().mean()) / 60
            lost += float((verdict.weights[3:] == 0).float().mean()) / 60
    assert rejected > 0.8
    assert lost < 0.05
