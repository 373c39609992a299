"""Defense: composition, bookkeeping, and the rounds where something is degenerate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from cosdefense import Cohort, Defense, Filter, Judgment, Layout, get
from cosdefense.aggregators import Mean, Median
from cosdefense.core import State
from cosdefense.filters import Clip, CosDefense, MultiKrum

LINE = Layout((("w", (1,)),), "w", 1)


def cohort_of(column: list[float]) -> Cohort:
    return Cohort.of(torch.tensor(column, dtype=torch.float32)[:, None], torch.zeros(1), LINE)


@dataclass(frozen=True)
class Below(Filter):
    """Rejects what is not below a limit; remembers how many rows it has judged."""

    limit: float

    def init(self) -> int:
        return 0

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        return Judgment(cohort.updates[:, 0], cohort.updates[:, 0] < self.limit), state + len(cohort)


def test_rejected_rows_are_removed_between_filters() -> None:
    defense = Defense((Below(10), Below(5)), Mean())
    verdict, state = defense(cohort_of([1, 20, 7, 3]), defense.init())
    assert verdict.update.tolist() == [2.0]
    assert verdict.weights.tolist() == [1, 0, 0, 1]
    assert state == (4, 3, None)  # the second filter never saw the row of 20
    assert verdict.evidence["Below"].tolist() == [1, 20, 7, 3]
    second = verdict.evidence["Below 2"].tolist()
    assert math.isnan(second[1])
    assert second[0::2] == [1, 7]


def test_soft_weights_multiply() -> None:
    @dataclass(frozen=True)
    class Half(Filter):
        def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
            return Judgment(cohort.weights, torch.tensor([0.5] + [1.0] * (len(cohort) - 1))), state

    defense = Defense((Half(), Half()), Mean())
    verdict, _ = defense(cohort_of([8, 0, 0, 0]), defense.init())
    assert verdict.weights.tolist() == [0.25, 1, 1, 1]
    assert verdict.update.item() == pytest.approx(2 / 3.25)


def test_rows_without_weight_do_not_vote() -> None:
    cohort = replace(cohort_of([1, 2, 1e6, 1e6, 1e6]), weights=torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]))
    defense = get("median")
    verdict, _ = defense(cohort, defense.init())
    assert verdict.update.tolist() == [1.5]


def test_weights_of_another_precision_are_welcome() -> None:
    @dataclass(frozen=True)
    class Double(Filter):
        def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
            return Judgment(cohort.weights, torch.full((len(cohort),), 0.5, dtype=torch.float64)), state

    defense = Defense((Double(),), Mean())
    verdict, _ = defense(cohort_of([1, 3]), defense.init())
    assert verdict.update.tolist() == [2.0]
    assert verdict.update.dtype == verdict.weights.dtype == torch.float32


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_stop_at_the_door(poison: float) -> None:
    for name in ("fedavg", "median", "cosdefense", "trimmed-mean", "clipping-median", "krum"):
        defense = get(name)
        verdict, _ = defense(cohort_of([1, 1, poison, 1, 1, 1]), defense.init())
        assert verdict.weights[2] == 0
        assert verdict.update.tolist() == [1.0]


def test_nobody_left_keeps_the_model_and_says_so() -> None:
    defense = Defense((Below(0),), Mean())
    verdict, state = defense(cohort_of([1, 2]), defense.init())
    assert verdict.update.tolist() == [0.0]
    assert verdict.weights.tolist() == [0, 0]
    assert verdict.skipped == "every client was rejected"
    assert state == (2, None)
    verdict, state = defense(cohort_of([math.nan, math.nan]), state)
    assert verdict.skipped == "no client sent finite numbers"
    assert state == (2, None)


def test_a_sum_that_overflows_keeps_the_model() -> None:
    defense = Defense((Below(3.3e38),), Mean())
    cohort = Cohort.of(torch.tensor([[3e38], [3e38], [3.4e38]]), torch.tensor([3e38]), LINE)
    verdict, _ = defense(cohort, defense.init())
    assert verdict.update.tolist() == [0.0]
    assert verdict.weights.tolist() == [1, 1, 0]  # the filter's opinion stands
    assert verdict.skipped == "the combined update is not finite"


def test_a_variance_never_goes_below_zero() -> None:
    layout = Layout((("w", (1,)), ("norm.running_var", (2,))), "w", 1)
    updates = torch.tensor([[-9.0, -0.5, -9.0], [-9.0, -0.5, -9.0]])
    params = torch.tensor([1.0, 1.0, 2.0])
    defense = get("fedavg")
    verdict, _ = defense(Cohort.of(updates, params, layout), defense.init())
    assert (params + verdict.update).tolist() == [-8.0, 0.5, 0.0]
    assert updates[0].tolist() == [-9.0, -0.5, -9.0]


def test_defenses_are_values() -> None:
    assert Defense((Clip(2.0),), Median()) == get("clipping-median")
    assert hash(Defense((MultiKrum(),), Mean())) == hash(get("multi-krum"))
    assert repr(get("cosdefense")).startswith("Defense(filters=(CosDefense(layer=None")


def test_asking_changes_nothing() -> None:
    """A white-box attacker may ask as often as it likes."""
    defense = Defense((Below(10), CosDefense()), Mean())
    state = defense.init()
    first, _ = defense(cohort_of([1, 2, 3]), state)
    for _ in range(5):
        again, _ = defense(cohort_of([1, 2, 3]), state)
        assert torch.equal(first.update, again.update)
    assert state == (0, None, None)


def test_buffers_never_vote() -> None:
    """The same weights with other statistics get the same scores."""
    layout = Layout((("w", (4,)), ("norm.running_mean", (3,))), "w", 4)
    rng = torch.Generator().manual_seed(0)
    updates, params = torch.randn(10, 7, generator=rng), torch.randn(7, generator=rng)
    other = updates.clone()
    other[:, 4:] = 1e6 * torch.randn(10, 3, generator=rng)
    for name in ("krum", "multi-krum", "cosdefense", "norm-clipping"):
        defense = get(name)
        one, _ = defense(Cohort.of(updates, params, layout), defense.init())
        two, _ = defense(Cohort.of(other, params, layout), defense.init())
        assert torch.equal(one.weights, two.weights)
        for filter_name in one.evidence:
            assert torch.equal(one.evidence[filter_name], two.evidence[filter_name])


def test_works_on_what_a_user_has() -> None:
    """The fifteen lines of the README in small: a model, updates, a verdict."""
    model = torch.nn.Linear(3, 2)
    layout = Layout.of(model)
    params = layout.flatten(model.state_dict())
    updates: Tensor = 0.1 * torch.randn(5, layout.size, generator=torch.Generator().manual_seed(1))
    defense = get("cosdefense")
    verdict, _ = defense(Cohort.of(updates, params, layout), defense.init())
    model.load_state_dict(layout.unflatten(params + verdict.update))
    assert 0 < int((verdict.weights > 0).sum()) < 5
