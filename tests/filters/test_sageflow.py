"""Sageflow against its definition, by hand and by a slow twin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import Cohort, Defense, Layout, TrustedData
from cosdefense.aggregators import Mean
from cosdefense.filters import Sageflow
from doubles import weights_of

LAYOUT = Layout((("w", (2, 2)),), "w", 4)


@dataclass(frozen=True)
class TwoImages(TrustedData):
    """Two images, of classes 0 and 1; the model's parameters are its answers to them."""

    def predict(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params.reshape(2, 2), torch.tensor([0, 1])


def cohort_of(rows: list[list[float]], start: list[float] | None = None, dtype: torch.dtype = torch.float64) -> Cohort:
    params = torch.tensor(start or [0.0] * 4, dtype=dtype)
    return Cohort.of(torch.tensor(rows, dtype=dtype), params, LAYOUT, trusted_data=TwoImages())


LN3 = math.log(3)
SURE = [LN3, 0.0, 0.0, LN3]  # three to one for the right class, twice
UNDECIDED = [0.0] * 4
WRONG = [0.0, LN3, LN3, 0.0]
# ¾ and ¼: entropy −¾ ln ¾ − ¼ ln ¼ = 0.5623; loss −ln ¾ = 0.2877, or −ln ¼ = 1.3863 where they are swapped.
ENTROPY, LOW, HIGH = 0.5623351446188083, -math.log(0.75), -math.log(0.25)  # 0.2877 / 1.3863 = 0.2075


def test_pinned_values() -> None:
    # Undecided about both: entropy and loss ln 2 = 0.6931. The lowest loss counts 1, the others its share of theirs.
    judgment, _ = Sageflow(max_entropy=0.7)(cohort_of([SURE, UNDECIDED, WRONG], start=[0.0] * 4), None)
    assert judgment.scores.tolist() == pytest.approx([ENTROPY, math.log(2), ENTROPY])
    assert judgment.weights.tolist() == pytest.approx([1, LOW / math.log(2), LOW / HIGH])


def test_the_undecided_are_rejected() -> None:
    cohort = cohort_of([SURE, UNDECIDED, WRONG])
    assert weights_of(Sageflow(max_entropy=0.6, wait_for_confident_model=False), cohort) == pytest.approx(
        [1, 0, LOW / HIGH]
    )


def test_delta_is_the_power_of_the_loss() -> None:
    cohort = cohort_of([SURE, UNDECIDED, WRONG])
    rule = Sageflow(max_entropy=0.6, delta=5.0, wait_for_confident_model=False)
    assert weights_of(rule, cohort) == pytest.approx([1, 0, (LOW / HIGH) ** 5])
    assert weights_of(Sageflow(max_entropy=0.6, delta=0.0, wait_for_confident_model=False), cohort) == [1, 0, 1]


def test_the_model_is_tested_not_the_update() -> None:
    # From (ln 3, 0, 0, ln 3) a client that stays there is sure; one that sends minus that has made it undecided.
    cohort = cohort_of([UNDECIDED, [-LN3, 0.0, 0.0, -LN3]], start=SURE)
    judgment, _ = Sageflow(max_entropy=0.6)(cohort, None)
    assert judgment.scores.tolist() == pytest.approx([ENTROPY, math.log(2)])
    assert judgment.weights.tolist() == [1, 0]


def test_patience_ends_when_the_global_model_would_pass() -> None:
    rows = [SURE, UNDECIDED]
    early, late = cohort_of(rows), cohort_of([[0.0] * 4, [-x for x in SURE]], start=SURE)
    assert weights_of(Sageflow(max_entropy=0.6), early) == pytest.approx([1, LOW / math.log(2)])
    assert weights_of(Sageflow(max_entropy=0.6), late) == [1, 0]
    assert weights_of(Sageflow(max_entropy=0.6, wait_for_confident_model=False), early) == [1, 0]


def test_with_nobody_left_the_model_stays() -> None:
    defense = Defense((Sageflow(max_entropy=0.5, wait_for_confident_model=False),), Mean())
    verdict, _ = defense(cohort_of([SURE, UNDECIDED]), defense.init())
    assert verdict.skipped == "every client was rejected"
    assert verdict.update.tolist() == [0] * 4


def test_pinned_update() -> None:
    defense = Defense((Sageflow(max_entropy=0.6, wait_for_confident_model=False),), Mean())
    verdict, _ = defense(cohort_of([SURE, UNDECIDED, WRONG]), defense.init())
    right, wrong = LN3 * HIGH / (LOW + HIGH), LN3 * LOW / (LOW + HIGH)  # β ∝ 1 / loss
    assert verdict.update.tolist() == pytest.approx([right, wrong, wrong, right])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wait_for_confident_model", [True, False])
def test_hostile_numbers(dtype: torch.dtype, wait_for_confident_model: bool) -> None:
    """Sure and as wrong as can be: no entropy, a loss of 1e30, no weight. Overflowing: no opinion at all."""
    largest = torch.finfo(dtype).max
    cohort = cohort_of([SURE, [-1e30, 1e30, 1e30, -1e30], [largest, 0, 0, largest]], [largest, 0, 0, 0], dtype)
    judgment, _ = Sageflow(wait_for_confident_model=wait_for_confident_model)(cohort, None)
    assert bool(judgment.scores.isfinite().all())
    assert judgment.weights.tolist()[2] == 0  # twice the largest number is infinite
    cohort = cohort_of([SURE, [-1e30, 1e30, 1e30, -1e30]], dtype=dtype)
    judgment, _ = Sageflow(wait_for_confident_model=wait_for_confident_model)(cohort, None)
    assert judgment.weights.tolist() == pytest.approx([1, 0], abs=1e-29)
    assert judgment.scores.tolist() == pytest.approx([ENTROPY, 0])


def test_nothing_but_nonsense_is_skipped() -> None:
    largest = torch.finfo(torch.float32).max
    defense = Defense((Sageflow(),), Mean())
    cohort = cohort_of([[largest, 0, 0, 0]] * 2, [largest, 0, 0, 0], torch.float32)
    verdict, _ = defense(cohort, defense.init())
    assert verdict.skipped == "every client was rejected"


def test_one_client_and_a_zero_row() -> None:
    assert weights_of(Sageflow(), cohort_of([SURE])) == [1]
    assert weights_of(Sageflow(max_entropy=0.7), cohort_of([UNDECIDED])) == [1]


def test_statistics_do_not_vote() -> None:
    """What the server's data say about the model decides; the length of a row does not."""
    shifted = [[x + 50 for x in SURE[:2]] + [x - 50 for x in SURE[2:]]]  # the same answers, another length
    assert weights_of(Sageflow(), cohort_of([SURE, *shifted])) == pytest.approx([1, 1], abs=1e-12)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_entropy": 0.0}, "Sageflow.max_entropy must be positive and finite, got 0.0"),
        ({"max_entropy": math.inf}, "Sageflow.max_entropy must be positive and finite, got inf"),
        ({"delta": -1.0}, "Sageflow.delta must be at least 0 and finite, got -1.0"),
        ({"delta": math.nan}, "Sageflow.delta must be at least 0 and finite, got nan"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Sageflow(**options)  # type: ignore[arg-type]


answers = st.lists(st.integers(-12, 12).map(lambda x: x / 4), min_size=4, max_size=4)


def slow_test(logits: list[float]) -> tuple[float, float]:
    """Mean entropy and mean loss on the two images."""
    entropy = loss = 0.0
    for image, label in enumerate((0, 1)):
        odds = [math.exp(x) for x in logits[2 * image : 2 * image + 2]]
        chances = [x / math.fsum(odds) for x in odds]
        entropy -= math.fsum(p * math.log(p) for p in chances) / 2
        loss -= math.log(chances[label]) / 2
    return entropy, loss


@given(st.lists(answers, min_size=1, max_size=7), answers, st.sampled_from([0.4, 0.6]), st.booleans())
def test_slow_twin(rows: list[list[float]], start: list[float], limit: float, wait_for_confident_model: bool) -> None:
    """β ∝ 1(E < limit) / L^δ. (Entropies within rounding of the limit may go either way.)"""
    tested = [slow_test([a + b for a, b in zip(row, start, strict=True)]) for row in rows]
    before = slow_test(start)[0]
    if any(abs(e - limit) < 1e-9 for e in (before, *(e for e, _ in tested))):
        return
    early = wait_for_confident_model and before >= limit
    shares = [1 / loss**3 if e < limit or early else 0.0 for e, loss in tested]
    judgment, _ = Sageflow(limit, 3.0, wait_for_confident_model)(cohort_of(rows, start), None)
    assert judgment.scores.tolist() == pytest.approx([e for e, _ in tested], abs=1e-12)
    expected = [share / max(shares) if any(shares) else 0.0 for share in shares]
    assert judgment.weights.tolist() == pytest.approx(expected, rel=1e-9)
