"""What comes before a robust aggregator: NNM, ARC and bucketing, by hand, by slow twins and against byzfl."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense, Layout, Need, TooFewClients, get
from cosdefense.aggregators import Bucketing, Mean, Median
from cosdefense.catalog.registry import build_defense, describe
from cosdefense.core import generator
from cosdefense.filters import ARC, NNM, FoolsGold, Krum
from doubles import weights_only

whole = st.lists(st.lists(st.integers(-9, 9).map(float), min_size=2, max_size=2), min_size=1, max_size=9)


def rows_of(part: NNM | ARC, rows: Any) -> list[list[float]]:
    judgment, _ = part(weights_only(rows), None)
    assert judgment.updates is not None
    assert judgment.weights.tolist() == [1] * len(rows)
    found: list[list[float]] = judgment.updates.tolist()
    return found


def test_pinned_mixing() -> None:
    rows = [[1, 0], [0, 1], [1, 1], [2, 1], [-9, -9]]
    assert rows_of(NNM(0.2), rows) == [[1, 0.75]] * 4 + [[-1.75, -1.75]]
    defense = Defense((NNM(0.2),), Median())
    assert defense(weights_only(rows), defense.init())[0].update.tolist() == [1, 0.75]
    expected = [pytest.approx([1 / 3, 2 / 3])] * 3 + [pytest.approx([11 / 3, 4])]
    assert rows_of(NNM(0.25), [[0, 0], [1, 0], [0, 2], [10, 10]]) == expected


def test_neighbors_at_the_same_distance_share_a_place() -> None:
    # Of three places the first goes to the row itself; the others are equally far from the middle one.
    mixed = rows_of(NNM(0.4), [[0, 0], [1, 0], [-1, 0], [0, 1], [0, 3]])
    assert mixed[0] == pytest.approx([0, 2 / 9])  # two places for (1, 0), (−1, 0), (0, 1): ⅔ each
    assert rows_of(NNM(0.0), [[3, 0], [0, 6], [0, 0]]) == [pytest.approx([1, 2])] * 3


@given(whole, st.sampled_from([0.0, 0.2, 0.34, 0.49]))
def test_slow_twin_of_nnm(rows: list[list[float]], contamination: float) -> None:
    n_neighbors = len(rows) - int(contamination * len(rows) + 1e-9)
    for row, found in zip(rows, rows_of(NNM(contamination), rows), strict=True):
        squares = [(row[0] - a) ** 2 + (row[1] - b) ** 2 for a, b in rows]  # whole numbers: ties are real ties
        last = sorted(squares)[n_neighbors - 1]
        inside, tied = [
            [q for q, s in zip(rows, squares, strict=True) if rule(s)] for rule in (last.__gt__, last.__eq__)
        ]
        share = (n_neighbors - len(inside)) / len(tied)
        expected = [(sum(q[k] for q in inside) + share * sum(q[k] for q in tied)) / n_neighbors for k in range(2)]
        assert found == pytest.approx(expected, abs=1e-9)


def test_pinned_clipping() -> None:
    rows = [[3, 4], [0, 2], [1, 0], [6, 8], [0, -3]]
    assert rows_of(ARC(0.2), rows) == [[3, 4], [0, 2], [1, 0], [3, 4], [0, -3]]
    assert rows_of(ARC(0.4), rows) == [pytest.approx([1.8, 2.4]), [0, 2], [1, 0], pytest.approx([1.8, 2.4]), [0, -3]]
    assert rows_of(ARC(0.0), rows) == rows


@given(whole, st.sampled_from([0.0, 0.2, 0.34, 0.49]))
def test_slow_twin_of_arc(rows: list[list[float]], contamination: float) -> None:
    n, f = len(rows), int(contamination * len(rows) + 1e-9)
    limit = sorted((math.hypot(*row) for row in rows), reverse=True)[2 * f * (n - f) // n]
    for row, found in zip(rows, rows_of(ARC(contamination), rows), strict=True):
        factor = min(1, limit / math.hypot(*row)) if any(row) else 1
        assert found == pytest.approx([factor * row[0], factor * row[1]])


def cohort_in_order(n: int) -> Cohort:
    """Rows 0, 1, … of clients such that the groups are drawn in the order of the rows."""
    drawn = torch.randperm(n, generator=generator(0, "bucketing")).tolist()  # client k gets place drawn[k]
    clients = [drawn.index(place) for place in range(n)]
    rows = torch.tensor([[1, 0], [0, 1], [1, 1], [2, 1], [-9, -9]], dtype=torch.float64)
    layout = Layout((("w", (2,)),), "w", 2)
    return Cohort.of(rows, torch.zeros(2, dtype=torch.float64), layout, torch.tensor(clients))


def test_pinned_buckets() -> None:
    """The card's example, groups in the order of the rows: (0.5, 0.5), (1.5, 1), (−9, −9)."""
    cohort = cohort_in_order(5)
    assert Bucketing()(cohort, Bucketing().init())[0].tolist() == [0.5, 0.5]
    mean = Bucketing(Defense((), Mean()))
    assert mean(cohort, mean.init())[0].tolist() == pytest.approx([-7 / 3, -2.5])
    median = Bucketing(size=1)
    assert median(cohort, median.init())[0].tolist() == [1, 1]
    everybody = Bucketing(size=99)
    assert everybody(cohort, everybody.init())[0].tolist() == pytest.approx([-1, -1.2])


@given(whole, st.integers(1, 4), st.integers(0, 50))
def test_slow_twin_of_bucketing(rows: list[list[float]], size: int, seed: int) -> None:
    """Groups of clients in the drawn order, the average of each, the median of these; by hand."""
    n, clients = len(rows), [7 * ((3 * i + 1) % len(rows)) for i in range(len(rows))]
    clients = clients if len(set(clients)) == n else list(range(n))
    drawn = torch.randperm(n, generator=generator(seed, "bucketing")).tolist()
    place = {client: drawn[rank] for rank, client in enumerate(sorted(clients))}
    in_order = [row for _, row in sorted(zip([place[c] for c in clients], rows, strict=True))]
    groups = [in_order[start : start + size] for start in range(0, n, size)]
    averages = [[sum(column) / len(group) for column in zip(*group, strict=True)] for group in groups]
    expected = [statistics.median(column) for column in zip(*averages, strict=True)]
    updates, d = torch.tensor(rows, dtype=torch.float64), len(rows[0])
    layout = Layout((("w", (d,)),), "w", d)
    cohort = Cohort.of(updates, torch.zeros(d, dtype=torch.float64), layout, torch.tensor(clients), seed=seed)
    part = Bucketing(size=size)
    assert part(cohort, part.init())[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_groups_depend_on_identities_and_seed_only() -> None:
    rng = torch.Generator().manual_seed(0)
    rows, layout = torch.randn(9, 2, generator=rng), Layout((("w", (2,)),), "w", 2)
    clients = torch.randperm(100, generator=rng)[:9]
    results = []
    for seed, order in ((0, torch.arange(9)), (0, torch.arange(9).flip(0)), (1, torch.arange(9))):
        cohort = Cohort.of(rows[order], torch.zeros(2), layout, clients[order], seed=seed)
        results.append(Bucketing()(cohort, Bucketing().init())[0])
    assert torch.allclose(results[0], results[1])
    assert not torch.allclose(results[0], results[2])


def test_a_rule_inside_buckets() -> None:
    krum = Bucketing(get("krum", contamination=0.2))
    assert krum.needs == {Need.ATTACKER_COUNT}
    assert Defense((), krum).needs == {Need.ATTACKER_COUNT}
    assert Bucketing().needs == frozenset()
    table = {"aggregator": {"name": "bucketing", "defense": "krum", "size": 3}}
    assert build_defense(table) == Defense((), Bucketing(Defense((Krum(),), Mean()), 3))
    assert build_defense(describe(Defense((), krum))) == Defense((), krum)
    with pytest.raises(TooFewClients, match="got 2"):  # groups, not clients
        krum(weights_only([[0.0]] * 4), krum.init())


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"NNM.contamination must be in \[0, 0.5\), got 0.5"):
        NNM(0.5)
    with pytest.raises(ValueError, match=r"ARC.contamination must be in \[0, 0.5\), got 0.5"):
        ARC(0.5)
    with pytest.raises(ValueError, match=r"Bucketing.size must be at least 1, got 0"):
        Bucketing(size=0)
    with pytest.raises(ValueError, match=r"Bucketing.defense must not need memory per client"):
        Bucketing(Defense((FoolsGold(),), Mean()))
