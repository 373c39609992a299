"""DnC against its definition, by hand and by a slow twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean
from cosdefense.filters import DnC
from cosdefense.filters.dnc import variance_shares
from doubles import weights_only

CARD = [[1, 0], [1, 1], [0, 1], [1, 0.5], [-5, -5]]


def test_pinned_values() -> None:
    judgment, _ = DnC(0.2)(weights_only(CARD), None)
    assert judgment.scores.tolist() == pytest.approx([1.824918, 4.201008, 1.780253, 2.890904, 41.409975], abs=1e-6)
    assert judgment.weights.tolist() == [1, 1, 1, 1, 0]
    defense = Defense((DnC(0.2),), Mean())
    assert defense(weights_only(CARD), defense.init())[0].update.tolist() == pytest.approx([0.75, 0.625])


def test_how_many_are_dropped() -> None:
    def dropped(part: DnC) -> list[int]:
        weights = part(weights_only(CARD), None)[0].weights
        return (weights == 0).nonzero().flatten().tolist()

    assert dropped(DnC(0.2, filter=0.9)) == []
    assert dropped(DnC(0.2, filter=2.0)) == [1, 4]
    assert dropped(DnC(0.0)) == []
    assert len(dropped(DnC(0.2, filter=99.0))) == 4  # one always stays


def test_identical_malicious_updates_share_the_last_place() -> None:
    rows = [[0.1, 0], [0, 0.1], [0.2, 0], [0, 0.2], [0.1, 0.1], [0, 0], [-9, -9], [-9, -9], [-9, -9], [-9, -9]]
    weights = DnC(0.3)(weights_only(rows), None)[0].weights
    assert weights.tolist() == pytest.approx([1] * 6 + [0.25] * 4)


def test_directions_of_equal_variance_count_together() -> None:
    """The corners of a square have no first direction: no choice of one may favor a corner."""
    scores = variance_shares(torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64))
    assert scores.tolist() == pytest.approx([1] * 4)
    assert variance_shares(torch.full((4, 3), 0.1)).tolist() == [0] * 4


def test_iterations_draw_other_coordinates_by_the_seed() -> None:
    layout = Layout((("w", (40,)),), "w", 40)
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    rows[:, 0] = torch.arange(9) * 100.0  # whoever draws this coordinate sees nothing else

    def score(part: DnC, seed: int) -> float:
        return float(part(Cohort.of(rows, torch.zeros(40), layout, seed=seed), None)[0].scores.max())

    hits = [score(DnC(0.2, coordinates=4), seed) > 1000 for seed in range(40)]
    assert 0 < sum(hits) < 20
    assert all(score(DnC(0.2, coordinates=4, iterations=100), seed) > 1000 for seed in range(3))
    assert score(DnC(0.2, coordinates=4), 3) == score(DnC(0.2, coordinates=4), 3)


table = st.integers(2, 7).flatmap(
    lambda n: st.lists(st.lists(st.integers(-20, 20).map(float), min_size=3, max_size=3), min_size=n, max_size=n)
)


@given(table)
def test_slow_twin(rows: list[list[float]]) -> None:
    """The top right-singular vector of the centred rows, as the paper says."""
    wide = torch.tensor(rows, dtype=torch.float64)
    centered = wide - wide.mean(dim=0)
    _, lengths, directions = torch.linalg.svd(centered, full_matrices=False)
    if lengths[0] < 1e-9 or (len(lengths) > 1 and lengths[1] > (1 - 1e-6) * lengths[0]):
        return  # no single direction
    expected = (centered @ directions[0]).square()
    found = DnC(0.3)(weights_only(rows), None)[0]
    assert found.scores.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"contamination": 0.5}, r"DnC.contamination must be in \[0, 0.5\), got 0.5"),
        ({"iterations": 0}, r"DnC.iterations must be at least 1, got 0"),
        ({"coordinates": 0}, r"DnC.coordinates must be at least 1, got 0"),
        ({"filter": -1.0}, r"DnC.filter must be at least 0 and finite, got -1.0"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DnC(**options)  # type: ignore[arg-type]
