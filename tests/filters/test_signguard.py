"""SignGuard against its definition, by hand, and its mean shift against scikit-learn's."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean
from cosdefense.filters import SignGuard
from cosdefense.ops import largest_mode

CARD = [[1, 2, -1, 3], [2, 1, -2, 1], [1, 1, -1, 2], [3, 1, -1, 1], [-1, -2, -1, -3], [40, 1, -1, 1]]


def cohort_of(rows: object, params: list[float] | None = None, seed: int = 0) -> Cohort:
    updates = torch.tensor(rows, dtype=torch.float64)
    d = updates.shape[1]
    start = torch.zeros(d, dtype=torch.float64) if params is None else torch.tensor(params, dtype=torch.float64)
    return Cohort.of(updates, start, Layout((("w", (d,)),), "w", d), seed=seed)


def test_pinned_values() -> None:
    part = SignGuard(fraction=1.0)
    judgment, _ = part(cohort_of(CARD), None)
    assert judgment.weights.tolist() == [True] * 4 + [False] * 2
    assert (judgment.scores > 1).tolist() == [False] * 4 + [True] * 2
    assert float(judgment.scores[5]) == pytest.approx(40.037482 / 3 / 3.668542, abs=1e-5)
    defense = Defense((part,), Mean())
    expected = [1.736803, 1.223607, -1.236803, 1.710410]
    assert defense(cohort_of(CARD), defense.init())[0].update.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("variant", "fourth"), [("sim", [0.2, 0.2, 0.2, 0.191663, 0]), ("dist", [0.2, 0, 0, 0, 0.2])])
def test_pinned_features_with_memory(variant: str, fourth: list[float]) -> None:
    """The server moved from 0 to (1, 1, −1, 1) in the last round."""
    part = SignGuard(variant, fraction=1.0)  # type: ignore[arg-type]
    cohort = cohort_of(CARD[:5], [1, 1, -1, 1])
    _, state = part(cohort_of(CARD[:5], [0, 0, 0, 0]), None)
    features = part._features(cohort, state)
    assert features[:, 3].tolist() == pytest.approx(fourth, abs=1e-6)
    assert features[:, :3].tolist() == [pytest.approx([1, 0, 0.25])] * 4 + [pytest.approx([0, 0, 1])]


def test_features_of_the_first_round() -> None:
    rows = [[1, 0], [1, 0], [1, 0], [0, 1]]
    similar = SignGuard("sim")._features(cohort_of(rows), None)[:, 3]
    assert similar.tolist() == pytest.approx([0.2, 0.2, 0.2, 0])  # medians of the cosines with others: 1, 1, 1, 0
    distant = SignGuard("dist")._features(cohort_of(rows), None)[:, 3]
    assert distant.tolist() == [0, 0, 0, 0.2]
    # A round in which the server did not move says nothing, as the first.
    still = SignGuard("sim")._features(cohort_of(rows), torch.zeros(2, dtype=torch.float64))[:, 3]
    assert torch.equal(still, similar)


def test_which_coordinates_are_counted() -> None:
    rows = torch.zeros(2, 100)
    for contiguous in (True, False):
        part = SignGuard(fraction=0.1, contiguous=contiguous)
        marked = (rows + torch.arange(100)).tolist()
        chosen = [part._draw_coordinates(cohort_of(marked, seed=seed))[0].tolist() for seed in range(20)]
        assert all(len(set(columns)) == 10 for columns in chosen)
        assert len({tuple(columns) for columns in chosen}) > 10
        assert all((max(columns) - min(columns) == 9) == contiguous for columns in chosen)


def test_nobody_is_left() -> None:
    """One client has the usual norm, the other two the usual signs."""
    rows = [[100.0, 100.0], [100.0, 100.0], [-1.0, -1.0], [0.01, 0.01], [0.01, 0.01]]
    defense = Defense((SignGuard(fraction=1.0),), Mean())
    assert defense(cohort_of(rows), defense.init())[0].skipped == "every client was rejected"


points = st.integers(2, 9).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 8).map(lambda x: x / 8), min_size=3, max_size=3), min_size=n, max_size=n)
)


@given(points)
def test_the_mean_shift_is_that_of_scikit_learn(rows: list[list[float]]) -> None:
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
    wide = torch.tensor(rows, dtype=torch.float64)
    bandwidth = float(torch.cdist(wide, wide).sort(dim=1).values[:, max(1, len(rows) // 2) - 1].mean())
    if bandwidth < 1e-6:
        return
    labels = cluster.MeanShift(bandwidth=bandwidth * (1 + 1e-9), cluster_all=False).fit_predict(wide.numpy())
    sizes = [int((labels == label).sum()) for label in range(labels.max() + 1)]
    found, distances = largest_mode(wide)
    if sizes.count(max(sizes)) == 1:  # of several clusters of the same size we keep all
        assert found.tolist() == (labels == sizes.index(max(sizes))).tolist()
    assert bool((distances[found] <= 1).all())


rounds = st.lists(st.lists(st.integers(-6, 6).map(float), min_size=4, max_size=4), min_size=2, max_size=8)


@given(rounds)
def test_slow_twin(rows: list[list[float]]) -> None:
    """The whole rule in plain Python, with scikit-learn's mean shift."""
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
    norms = [math.hypot(*row) for row in rows]
    middle = statistics.median(norms)
    usual = [0.1 * middle < norm < 3 * middle or norm == middle for norm in norms]
    shares = [[sum((x > 0) - (x < 0) == sign for x in row) / 4 for sign in (1, 0, -1)] for row in rows]
    features = [[x / (max(column) + 1e-8) for x, column in zip(row, zip(*shares, strict=True), strict=True)]
                for row in shares]  # fmt: skip
    nearest = [sorted(math.dist(one, other) for other in features)[max(1, len(rows) // 2) - 1] for one in features]
    bandwidth = sum(nearest) / len(rows)
    if bandwidth < 1e-6:
        return
    labels = cluster.MeanShift(bandwidth=bandwidth * (1 + 1e-9), cluster_all=False).fit_predict(features).tolist()
    sizes = [labels.count(label) for label in range(max(labels) + 1)]
    if sizes.count(max(sizes)) > 1:
        return
    kept = [fits and label == sizes.index(max(sizes)) for fits, label in zip(usual, labels, strict=True)]
    defense = Defense((SignGuard(fraction=1.0),), Mean())
    verdict, _ = defense(cohort_of(rows), defense.init())
    assert (verdict.weights != 0).tolist() == kept
    if any(kept):
        clipped = [[x * min(1, middle / norm) if norm else 0.0 for x in row]
                   for row, norm, keep in zip(rows, norms, kept, strict=True) if keep]  # fmt: skip
        expected = [sum(column) / len(clipped) for column in zip(*clipped, strict=True)]
        assert verdict.update.tolist() == pytest.approx(expected, abs=1e-9)


def test_alike_points() -> None:
    assert largest_mode(torch.zeros(5, 3))[0].tolist() == [True] * 5
    assert largest_mode(torch.tensor([[0.0], [0], [0], [1], [1]]))[0].tolist() == [True] * 3 + [False] * 2
    assert largest_mode(torch.tensor([[0.0], [0], [1], [1]]))[0].tolist() == [True] * 4
    assert largest_mode(torch.tensor([[0.3]]))[0].tolist() == [True]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"low": 1.5}, r"SignGuard needs 0 <= low < 1 < high, got 1.5 and 3.0"),
        ({"fraction": 0.0}, r"SignGuard.fraction must be in \(0, 1\], got 0.0"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SignGuard(**options)  # type: ignore[arg-type]
