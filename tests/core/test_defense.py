"""Defense: composition, bookkeeping, and the rounds where something is degenerate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cosdefense import Cohort, Defense, Filter, Judgment, Layout, TooFewClients, get, ops
from cosdefense.aggregators import Bulyan, Mean, Median
from cosdefense.core import State
from cosdefense.filters import Clip, CosDefense, Krum, MultiKrum, NearDuplicates, OpposedClusters
from cosdefense.hooks import FLWBC
from shapes import unchecked

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
def test_rows_that_are_not_finite_are_rejected_before_any_filter_runs(poison: float) -> None:
    for name in ("fedavg", "median", "cosdefense", "trimmed-mean", "clipping-median", "krum"):
        defense = get(name)
        verdict, _ = defense(cohort_of([1, 1, poison, 1, 1, 1]), defense.init())
        assert verdict.weights[2] == 0
        assert verdict.update.tolist() == [1.0]


def test_judging_and_combining_are_steps_of_their_own() -> None:
    """Between them stands who is left, with which weights and rows: what another server needs to combine them."""
    defense = Defense((Below(10), Clip(2.0)), Mean())
    cohort = replace(cohort_of([1, 20, math.nan, 4]), weights=torch.tensor([1.0, 1.0, 1.0, 3.0]))
    judged, state = defense.judge(cohort, defense.init())
    assert judged.received is cohort
    assert judged.accepted.clients.tolist() == [0, 3]
    assert judged.rows.tolist() == [0, 3]
    assert judged.accepted.weights.tolist() == [1, 3]
    assert judged.accepted.updates.flatten().tolist() == [1, 2]  # clipped
    assert state == (3, None, None)
    verdict, after = defense.combine(judged, state)
    whole, expected = defense(cohort, defense.init())
    assert verdict.update.tolist() == whole.update.tolist() == [7 / 4]
    assert verdict.weights.tolist() == whole.weights.tolist() == [1, 0, 0, 3]
    assert after == expected
    elsewhere = judged.verdict()
    assert elsewhere.update.tolist() == [0.0]
    assert elsewhere.weights.tolist() == [1, 0, 0, 3]
    assert elsewhere.skipped is None


def test_accepted_are_those_that_count() -> None:
    """Mean leaves rejected rows where they are, which saves a copy of all others."""
    judged, _ = Defense((Below(10),), Mean()).judge(cohort_of([1, 20, 3]), (0, None))
    assert len(judged.remaining) == 3
    assert judged.accepted.clients.tolist() == [0, 2]
    judged, _ = Defense((Below(10),), Median()).judge(cohort_of([1, 20, 3]), (0, None))
    assert len(judged.remaining) == 2


def test_too_few_clients_skip_a_round_and_leave_the_memory() -> None:
    for defense in (Defense((Below(10), Krum()), Mean()), Defense((Below(10),), Bulyan())):
        with pytest.raises(TooFewClients):
            defense(cohort_of([1, 2]), defense.init())
        judged, verdict, state = defense.run_round(cohort_of([1, 2]), defense.init())
        assert state == defense.init()
        assert verdict.skipped is not None
        assert "needs" in verdict.skipped
        assert verdict.update.tolist() == [0.0]
        assert verdict.weights.tolist() == [0, 0]
        assert judged.too_few_clients
        assert len(judged.accepted) == 0


def test_a_round_that_is_not_skipped() -> None:
    defense, cohort = Defense((Below(10),), Median()), cohort_of([1, 20, 3, 4])
    judged, verdict, state = defense.run_round(cohort, defense.init())
    assert (verdict.update.tolist(), state) == ([3.0], (4, None))
    assert not judged.too_few_clients
    judged, verdict, state = defense.run_round(cohort, state, combine=False)
    assert (verdict.update.tolist(), verdict.weights.tolist(), state) == ([0.0], [1, 0, 1, 1], (8, None))
    assert judged.accepted.updates.flatten().tolist() == [1, 3, 4]
    judged, verdict, _ = defense.run_round(cohort_of([20, 30]), state, combine=False)
    assert verdict.skipped == "every client was rejected"
    assert not judged.too_few_clients


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ((CosDefense(), Mean()), r"Defense.filters must be a tuple, got CosDefense: write .*\(CosDefense\(\.\.\.\),\)"),
        ((CosDefense, Mean()), r"must be a tuple, got CosDefense: write .*\(CosDefense\(\.\.\.\),\)"),
        (([CosDefense()], Mean()), r"Defense.filters must be a tuple, got list"),
        ((Mean(),), "aggregator"),
        (((CosDefense(),),), "aggregator"),
        (((CosDefense,), Mean()), r"filters\[0\] must be of kind Filter, got a class: write CosDefense\(\.\.\.\)"),
        (((Clip(), Mean()), Mean()), r"filters\[1\] must be of kind Filter, got Mean. The order is Defense\(\(Filter"),
        (((), CosDefense()), "Defense.aggregator must be of kind Aggregator, got CosDefense"),
        (((), Mean), r"Defense.aggregator must be .* got a class: write Mean\(\.\.\.\)"),
        (((), Mean(), FLWBC()), r"Defense.hooks must be a tuple, got FLWBC: write .*\(FLWBC\(\.\.\.\),\)"),
        (((), Mean(), (Clip(),)), r"Defense.hooks\[0\] must be of kind ClientHook, got Clip"),
    ],
)
def test_wrong_parts_are_named(parts: tuple[Any, ...], complaint: str) -> None:
    with unchecked(), pytest.raises(TypeError, match=complaint):
        Defense(*parts)


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


def test_filters_that_compare_the_same_rows_share_their_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def count(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return ops.cosines(rows)

    monkeypatch.setattr("cosdefense.core.similarities.cosines", count)
    rows = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    cohort = Cohort.of(rows, torch.zeros(5), Layout.of(torch.nn.Linear(5, 1, bias=False)))
    parts = NearDuplicates(), OpposedClusters(0.0)
    verdict, _ = Defense(parts, Mean())(cohort, (None, None, None))
    assert calls == [8]
    first, _ = parts[0](cohort, None)
    second, _ = parts[1](replace(cohort, weights=first.weights), None)
    assert verdict.weights.tolist() == (first.weights * second.weights).tolist()
    calls.clear()
    Defense((NearDuplicates(), Clip(0.1), OpposedClusters(0.0)), Mean())(cohort, (None, None, None, None))
    assert calls == [8, 8]  # rows that were rewritten are compared again
