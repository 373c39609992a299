"""FedRoLA against the rule of the authors' code, by hand and by a slow twin."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosdefense.filters import FedRoLA
from cosdefense.filters.fedrola import similarities
from doubles import cohort_of, save_and_load, slow_cosine, weights_only

CARD = [[1, 0], [0, 1], [-0.2, 1], [3, 3], [3, 3.1]]


def test_pinned_similarities() -> None:
    rows = torch.tensor(CARD, dtype=torch.float64)
    assert similarities(rows, "mean").tolist() == pytest.approx(
        [0.642970, 0.765891, 0.624921, 0.996215, 0.997506], abs=1e-6
    )
    assert similarities(rows, "pairs").tolist() == pytest.approx(
        [0.701264, 0.849591, 0.774422, 0.853486, 0.859234], abs=1e-6
    )


def test_pinned_weights() -> None:
    part = FedRoLA()
    first, state = part(weights_only(CARD), part.init())
    # Suspicious clients weigh nothing in round 0. The records are 2 : 1 and 1 : 2.
    assert first.weights.tolist() == pytest.approx([2 / 3] * 3 + [0] * 2)
    assert first.scores.tolist() == [0, 0, 0, 1, 1]
    for _ in range(9):
        _, state = part(weights_only(CARD), state)
    tenth, _ = part(weights_only(CARD), save_and_load(state, part))
    assert tenth.weights.tolist() == pytest.approx([12 / 13] * 3 + [0.462117 / 13] * 2, abs=1e-6)
    assert FedRoLA(similarity="pairs")(weights_only(CARD), part.init())[0].weights.tolist() == pytest.approx(
        [2 / 3] * 5
    )


def test_a_majority_is_not_suspicious() -> None:
    part = FedRoLA()
    rows = [[1, 0], [1, 0.1], [1, 0.2], [0, 1]]
    assert part(weights_only(rows), part.init())[0].weights.tolist() == pytest.approx([2 / 3] * 4)


def test_records_belong_to_identities_and_statistics_do_not_count() -> None:
    part = FedRoLA()
    _, state = part(cohort_of(CARD, [9, 8, 7, 6, 5]), part.init())
    judgment, _ = part(cohort_of([[1, 0], [0, 1], [-1, 0], [0, -1]], [5, 6, 7, 1]), state)
    assert judgment.weights.tolist() == pytest.approx([2 / 4, 2 / 4, 3 / 4, 2 / 3])


rounds = st.lists(
    st.lists(st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=2), min_size=4, max_size=4), max_size=4
)


@given(rounds)
def test_slow_twin(history: list[list[list[float]]]) -> None:
    part = FedRoLA()
    state, records = part.init(), [[1, 1] for _ in range(4)]
    for number, rows in enumerate(history):
        judgment, state = part(weights_only(rows), state)
        mean = [sum(row[k] for row in rows) / 4 for k in range(2)]
        found = [slow_cosine(row, mean) for row in rows]
        if any(abs(value - 0.9) < 1e-9 for value in found):
            return
        flagged = [value >= 0.9 for value in found]
        flagged = flagged if 2 * sum(flagged) < 4 else [False] * 4
        for record, suspicious in zip(records, flagged, strict=True):
            record[suspicious] += 1
        factor = 2 / (1 + math.exp(-0.1 * number)) - 1
        expected = [a / (a + b) * (factor if bad else 1) for (a, b), bad in zip(records, flagged, strict=True)]
        assert judgment.weights.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"threshold": 2.0}, r"FedRoLA.threshold must be in \[-1, 1\], got 2.0"),
        ({"layers": 0}, r"FedRoLA.layers must be at least 1, got 0"),
        ({"capacity": 0}, r"FedRoLA.capacity must be at least 1, got 0"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FedRoLA(**options)  # type: ignore[arg-type]
