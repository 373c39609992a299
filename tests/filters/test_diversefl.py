"""DiverseFL against its definition, by hand and by a slow twin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import Defense, MissingTrustedData, TrustedData
from cosdefense.aggregators import Mean
from cosdefense.filters import DiverseFL
from doubles import always, cohort_of, slow_cosine, weights_of


@dataclass(frozen=True)
class Guides(TrustedData):
    """What each client's own data lead to; the statistic is client number 7's telephone number."""

    known: dict[int, list[float]]

    def guides(self, clients: Tensor, params: Tensor, seed: int) -> Tensor:
        return params.new_tensor([[*self.known[client], 5550777.0] for client in clients.tolist()])


def everybody(guide: list[float], n: int) -> Guides:
    return Guides(dict.fromkeys(range(n), guide))


def test_pinned_scores() -> None:
    # The guide (3, 4) has length 5. By row: itself; three times; a tenth; at a right angle; opposite.
    rows = [[3, 4], [9, 12], [0.3, 0.4], [4, -3], [-3, -4]]
    judgment, _ = DiverseFL()(cohort_of(rows, trusted_data=everybody([3, 4], 5)), None)
    # The worst of 0 − cos, ln(ratio / 2) and ln(½ / ratio): −ln 2; ln 1.5; ln 5; 0; 1.
    assert judgment.scores.tolist() == pytest.approx([-math.log(2), math.log(1.5), math.log(5), 0, 1], abs=1e-15)
    assert judgment.weights.tolist() == [True, False, False, False, False]


def test_other_limits() -> None:
    rows, guides = [[4, 3], [9, 12], [0.3, 0.4]], everybody([3, 4], 3)  # cosines 0.96, 1, 1; ratios 1, 3, 0.1
    assert weights_of(DiverseFL(max_ratio=3.5), cohort_of(rows, trusted_data=guides)) == [1, 1, 0]
    assert weights_of(DiverseFL(min_ratio=0.05), cohort_of(rows, trusted_data=guides)) == [1, 0, 1]
    assert weights_of(DiverseFL(min_cosine=0.97), cohort_of(rows, trusted_data=guides)) == [0, 0, 0]
    assert weights_of(DiverseFL(min_cosine=0.95), cohort_of(rows, trusted_data=guides)) == [1, 0, 0]


def test_everybody_has_a_guide_of_their_own() -> None:
    """By identity: opposite updates are both honest where the data differ, wherever the rows stand."""
    guides = Guides({4: [1, 0], 7: [-1, 0], 9: [0, 1]})
    rows = {4: [1.0, 0.1], 7: [-1.0, 0.1], 9: [1.0, 0.0]}
    for order in ([4, 7, 9], [9, 4, 7], [7, 9, 4]):
        found = weights_of(DiverseFL(), cohort_of([rows[c] for c in order], order, trusted_data=guides))
        assert found == [float(client != 9) for client in order]


def test_accepted_rows_are_averaged_as_they_are() -> None:
    defense = Defense((DiverseFL(),), Mean())
    verdict, _ = defense(
        cohort_of([[3, 4, 0], [6, 4, 0], [-3, -4, 0]], trusted_data=everybody([3, 4], 3)), defense.init()
    )
    assert verdict.update.tolist() == pytest.approx([4.5, 4, 0])


def test_statistics_do_not_vote() -> None:
    for statistic in (0, 1e6, -1e6):
        assert weights_of(DiverseFL(), cohort_of([[3, 4, statistic]], trusted_data=everybody([3, 4], 1))) == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hostile_numbers(dtype: torch.dtype) -> None:
    rows = [[3, 4], [3e30, 4e30], [3e-30, 4e-30], [0, 0]]
    judgment, _ = DiverseFL()(cohort_of(rows, trusted_data=everybody([3, 4], 4), dtype=dtype), None)
    assert judgment.weights.tolist() == [True, False, False, False]
    assert judgment.scores[1:3].tolist() == pytest.approx([math.log(0.5e30), math.log(0.5e30)])
    assert bool(judgment.scores.isfinite().all())


def test_a_guide_that_stands_still_vouches_for_nobody() -> None:
    judgment, _ = DiverseFL()(cohort_of([[3, 4], [0, 0]], trusted_data=everybody([0, 0], 2)), None)
    assert judgment.weights.tolist() == [False, False]
    assert bool(judgment.scores.isfinite().all())


def test_it_says_that_it_needs_data() -> None:
    with pytest.raises(MissingTrustedData, match="clean data at the server"):
        DiverseFL()(cohort_of([[1, 2]]), None)
    with pytest.raises(MissingTrustedData, match="a sample of every client's data"):
        DiverseFL()(cohort_of([[1, 2]], trusted_data=always(1, 1)), None)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"min_cosine": 1.0}, r"DiverseFL.min_cosine must be in \[-1, 1\), got 1.0"),
        ({"min_cosine": -1.5}, r"DiverseFL.min_cosine must be in \[-1, 1\), got -1.5"),
        ({"min_ratio": 0.0}, "DiverseFL needs 0 < min_ratio < max_ratio, got 0.0 and 2.0"),
        ({"min_ratio": 2.0}, "DiverseFL needs 0 < min_ratio < max_ratio, got 2.0 and 2.0"),
        ({"max_ratio": math.inf}, "DiverseFL needs 0 < min_ratio < max_ratio, got 0.5 and inf"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DiverseFL(**options)


numbers = st.integers(-20, 20).map(float)
pairs = st.lists(numbers, min_size=2, max_size=2)


@given(st.lists(st.tuples(pairs, pairs), min_size=1, max_size=8), st.sampled_from([0.0, 0.3, -0.5]))
def test_slow_twin(clients: list[tuple[list[float], list[float]]], min_cosine: float) -> None:
    """cos > ε₁ and ε₂ < ‖u‖ / ‖ũ‖ < ε₃. (Within rounding of a limit, either way.)"""
    guides = Guides({client: guide for client, (_, guide) in enumerate(clients)})
    judgment, _ = DiverseFL(min_cosine)(cohort_of([row for row, _ in clients], trusted_data=guides), None)
    for (row, guide), accepted, score in zip(clients, judgment.weights.tolist(), judgment.scores.tolist(), strict=True):
        assert accepted == (score < 0)
        if not any(row) or not any(guide):
            assert not accepted
            continue
        angle, ratio = slow_cosine(row, guide), math.hypot(*row) / math.hypot(*guide)
        if min(abs(angle - min_cosine), abs(ratio - 0.5), abs(ratio - 2)) > 1e-9:
            assert accepted == (angle > min_cosine and 0.5 < ratio < 2)
