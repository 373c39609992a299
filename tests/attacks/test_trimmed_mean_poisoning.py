"""The attack on trimmed means against the paper's intervals, by hand and by a slow twin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import Cohort, Layout
from cosdefense.aggregators import Median, TrimmedMean
from cosdefense.attacks import TrimmedMeanPoisoning
from shapes import unchecked

Interval = tuple[float, float]


def cohort_of(rows: Tensor | list[list[float]], clients: list[int] | None = None, seed: int = 0) -> Cohort:
    updates = torch.as_tensor(rows, dtype=torch.float64)
    d = updates.shape[1]
    names = None if clients is None else torch.tensor(clients)
    return Cohort.of(updates, torch.zeros(d, dtype=torch.float64), Layout((("w", (d,)),), "w", d), names, seed=seed)


def drawn(attack: TrimmedMeanPoisoning, columns: list[list[float]], malicious: list[bool]) -> Tensor:
    """What the attackers send over many rounds: [rounds, attackers, columns]."""
    rows, mask = torch.tensor(columns, dtype=torch.float64).T.contiguous(), torch.tensor(malicious)
    return torch.stack([attack.forge(cohort_of(rows, seed=seed), mask, None)[0][mask] for seed in range(300)])


def spans(values: Tensor, expected: list[Interval]) -> None:
    """Every draw lies in its interval, and 600 of them leave less than a fiftieth at either end (chance 2e-5 each)."""
    for column, (low, high) in enumerate(expected):
        found, slack = values[..., column].flatten(), 1e-12 * max(1, abs(low), abs(high))
        assert low - slack <= float(found.min()) <= low + 0.02 * (high - low) + slack
        assert high - 0.02 * (high - low) - slack <= float(found.max()) <= high + slack
        assert float(found.mean()) == pytest.approx((low + high) / 2, abs=0.05 * (high - low) + slack)


# Per coordinate: what three honest clients send; the last two rows are the attackers' own.
COLUMNS = [
    [1.0, 2.0, 3.0, 50.0, -50.0],  # up, all above zero
    [-3.0, 4.0, 5.0, -50.0, -50.0],  # up, the lowest below zero
    [-1.0, -2.0, -3.0, 50.0, 50.0],  # down, all below zero
    [3.0, -4.0, -5.0, 50.0, 50.0],  # down, the highest above zero
]
MALICIOUS = [False, False, False, True, True]


def test_pinned_intervals_with_full_knowledge() -> None:
    # Up: below the minimum, [min / 2, min] or [2 min, min]. Down: above the maximum, [max, max / 2] or [max, 2 max].
    spans(drawn(TrimmedMeanPoisoning(), COLUMNS, MALICIOUS), [(0.5, 1), (-6, -3), (-1, -0.5), (3, 6)])


def test_pinned_reach() -> None:
    spans(drawn(TrimmedMeanPoisoning(factor=4.0), COLUMNS, MALICIOUS), [(0.25, 1), (-12, -3), (-1, -0.25), (3, 12)])
    assert torch.equal(
        drawn(TrimmedMeanPoisoning(factor=1.0), COLUMNS, MALICIOUS)[0], torch.tensor([[1.0, -3, -1, 3]] * 2).double()
    )


def test_pinned_intervals_with_partial_knowledge() -> None:
    # The attackers' own honest rows: mean 10 ± 2 (population), mean −10 ± 4. Three to four deviations beyond:
    # 10 − [6, 8] = [2, 4] and −10 + [12, 16] = [2, 6]. What the honest ones send is not known.
    columns = [[-999.0, -999.0, -999.0, 8.0, 12.0], [999.0, 999.0, 999.0, -14.0, -6.0]]
    spans(drawn(TrimmedMeanPoisoning("partial"), columns, MALICIOUS), [(2, 4), (2, 6)])


def test_both_directions_are_attacked() -> None:
    """The pitfall of testing "goes up" twice leaves half of the coordinates at zero, or on the harmless side."""
    rng = torch.Generator().manual_seed(0)
    honest = torch.randn(7, 1000, generator=rng).double()
    cohort = cohort_of(torch.cat([honest, torch.zeros(3, 1000, dtype=torch.float64)]))
    malicious = torch.arange(10) >= 7
    forged = TrimmedMeanPoisoning().forge(cohort, malicious, None)[0][malicious]
    up = honest.mean(dim=0) > 0
    assert 400 < int(up.sum()) < 600
    assert bool((forged[:, up] <= honest.amin(dim=0)[up]).all())
    assert bool((forged[:, ~up] >= honest.amax(dim=0)[~up]).all())
    assert bool((forged != 0).all())


@pytest.mark.parametrize("rule", [TrimmedMean(0.3), Median()])
def test_the_aggregate_goes_the_wrong_way(rule: TrimmedMean | Median) -> None:
    rng = torch.Generator().manual_seed(0)
    rows = 0.5 + torch.randn(10, 500, generator=rng).double()
    malicious = torch.arange(10) < 3
    clean, _ = rule(cohort_of(rows), None)
    forged, _ = TrimmedMeanPoisoning().forge(cohort_of(rows), malicious, None)
    spoiled, _ = rule(cohort_of(torch.where(malicious[:, None], forged, rows)), None)
    assert float(((spoiled - clean) * rows[~malicious].mean(dim=0).sign()).mean()) < -0.3


def test_attackers_draw_each_their_own_by_identity() -> None:
    rows = torch.randn(5, 20, generator=torch.Generator().manual_seed(0)).double()
    malicious = torch.tensor([True, True, False, False, False])
    one, _ = TrimmedMeanPoisoning().forge(cohort_of(rows, [7, 8, 1, 2, 3]), malicious, None)
    swapped, _ = TrimmedMeanPoisoning().forge(cohort_of(rows, [8, 7, 1, 2, 3]), malicious, None)
    assert not torch.equal(one[0], one[1])
    assert torch.equal(one[0], swapped[1])
    assert torch.equal(one[1], swapped[0])
    later, _ = TrimmedMeanPoisoning().forge(cohort_of(rows, [7, 8, 1, 2, 3], seed=1), malicious, None)
    assert not torch.equal(one[0], later[0])


def test_extremes_of_models() -> None:
    """Weights 10, −10, 10, −10: the models lie in 11 … 13, −13 … −5, 7 … 9, −15 … −7; the extremes are doubled or
    halved there, away from where the mean update goes."""
    rows = torch.tensor(COLUMNS, dtype=torch.float64).T.contiguous()
    cohort = replace(cohort_of(rows), params=torch.tensor([10.0, -10.0, 10.0, -10.0], dtype=torch.float64))
    malicious = torch.tensor(MALICIOUS)
    attack = TrimmedMeanPoisoning(of="models")
    sent = torch.stack([attack.forge(replace(cohort, seed=seed), malicious, None)[0][malicious] for seed in range(300)])
    # Models: below 11 / 2 … 11, below −26 … −13, above 9 … 18, above −7 … −3.5. Minus the weights.
    spans(sent, [(-4.5, 1), (-16, -3), (-1, 8), (3, 6.5)])
    partial = [TrimmedMeanPoisoning("partial", of=of).forge(cohort, malicious, None)[0] for of in ("updates", "models")]
    assert torch.equal(*partial)


def test_nobody_to_know() -> None:
    """Without honest clients the attackers go by their own rows; without attackers nothing happens."""
    everybody = torch.ones(2, dtype=torch.bool)
    forged, _ = TrimmedMeanPoisoning().forge(cohort_of([[1.0, -4.0], [3.0, -2.0]]), everybody, None)
    assert bool(((forged[:, 0] >= 0.5) & (forged[:, 0] <= 1)).all())
    assert bool(((forged[:, 1] >= -2) & (forged[:, 1] <= -1)).all())
    nobody, _ = TrimmedMeanPoisoning().forge(cohort_of([[1.0, -4.0], [3.0, -2.0]]), ~everybody, None)
    assert nobody.tolist() == [[1, -4], [3, -2]]
    alone, _ = TrimmedMeanPoisoning("partial").forge(cohort_of([[1.0, -4.0]]), torch.tensor([True]), None)
    assert alone.tolist() == [[1, -4]]  # sees no deviation


values = st.integers(-50, 50).map(float)


@given(
    st.lists(st.tuples(st.booleans(), st.lists(values, min_size=3, max_size=3)), min_size=1, max_size=9),
    st.sampled_from([1.0, 2.0, 5.0]),
    st.integers(0, 2**32),
)
def test_slow_twin(clients: list[tuple[bool, list[float]]], factor: float, seed: int) -> None:
    """The paper's intervals, coordinate by coordinate; a mean of zero counts as going down."""
    honest = [row for bad, row in clients if not bad]
    own = [row for bad, row in clients if bad]
    malicious = torch.tensor([bad for bad, _ in clients])
    cohort = cohort_of([row for _, row in clients], seed=seed)
    full, _ = TrimmedMeanPoisoning("full", factor).forge(cohort, malicious, None)
    partial, _ = TrimmedMeanPoisoning("partial").forge(cohort, malicious, None)
    assert torch.equal(full[~malicious], cohort.updates[~malicious])
    for k in range(3):
        seen = [row[k] for row in honest or own]
        low, high = min(seen), max(seen)
        if math.fsum(seen) > 0:
            interval = (low / factor, low) if low > 0 else (factor * low, low)
        else:
            interval = (high, factor * high) if high > 0 else (high, high / factor)
        for value in full[malicious][:, k].tolist():
            assert interval[0] - 1e-9 <= value <= interval[1] + 1e-9
        mine = [row[k] for row in own]
        if mine:
            mean = math.fsum(mine) / len(mine)
            sign = 1 if math.fsum(mine) > 0 else -1
            deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in mine) / len(mine))
            for value in partial[malicious][:, k].tolist():
                assert 3 * deviation - 1e-9 <= sign * (mean - value) <= 4 * deviation + 1e-9


def test_mistakes_are_named() -> None:
    with unchecked(), pytest.raises(ValueError, match=r"of must be one of \('updates', 'models'\), got 'weights'"):
        TrimmedMeanPoisoning(of="weights")  # type: ignore[arg-type]
    with unchecked(), pytest.raises(ValueError, match=r"knowledge must be one of \('full', 'partial'\), got 'none'"):
        TrimmedMeanPoisoning(knowledge="none")  # type: ignore[arg-type]
    for factor in (0.5, math.inf, math.nan):
        with pytest.raises(
            ValueError, match=rf"TrimmedMeanPoisoning.factor must be at least 1 and finite, got {factor}"
        ):
            TrimmedMeanPoisoning(factor=factor)
