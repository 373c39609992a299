"""The running mean in integers: against plain integers, against a mean in floating point, and where halves wrap."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from secure_examples import THOROUGH

from cosdefense.secure.mean_store import MeanStore
from cosdefense.secure.projection import RING, SIZE
from cosdefense.secure.secret_mean import (
    COPIES,
    MOST,
    SPLIT,
    STEP,
    Lesson,
    join_products,
    learn,
    multiply_in_the_clear,
    plan_lesson,
    project_mean,
)
from cosdefense.secure.terms import MEAN_ROWS

KEY = bytes(range(32))
FRACTION = 20


def divide(rng: np.random.Generator, words: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    mask = rng.integers(0, 2**64, words.shape, dtype=np.uint64)
    return words - mask, mask


def to_integers(values: NDArray[np.float64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.rint(values).astype(np.int64)
    return found


def draw_mean(rng: np.random.Generator, norm: float, size: int = SIZE) -> NDArray[np.int64]:
    values = rng.normal(size=size) * (rng.random(size) < rng.choice([0.01, 1.0]))
    values[0] += 1e-9
    return to_integers(values / np.linalg.norm(values) * norm)


def multiply_rows(
    leader: NDArray[np.uint64], helper: NDArray[np.uint64], updates: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """The opened matrix, as the triples give it: modulo 2**64."""
    rows = np.concatenate([updates.view(np.uint64), leader + helper])
    matrix: NDArray[np.uint64] = rows @ rows.T
    return matrix


def plain_products(mean: NDArray[np.int64], updates: NDArray[np.int64]) -> tuple[tuple[int, ...], int]:
    values = mean.tolist()
    clients = tuple(sum(map(int.__mul__, values, row)) for row in updates.tolist())
    return clients, sum(map(int.__mul__, values, values))


@pytest.mark.parametrize("norm", [0.0, 1.0, 2.0**20, 2.0**31, MOST / 16, MOST])
def test_products_of_the_mean_are_exact(norm: float) -> None:
    """With updates as long as the format allows, which is eight times what their proofs allow."""
    rng = np.random.default_rng(0)
    for _ in range(200 if THOROUGH else 20):
        mean = draw_mean(rng, norm)
        updates = np.stack([draw_mean(rng, 2.0**scale) for scale in (0, 12, 23, 28, 31)])
        updates[1] = np.rint(mean * (2.0**30 / max(norm, 1.0))).astype(np.int64)  # the largest product there is
        halves = divide(rng, np.stack([mean, mean]).view(np.uint64))
        ours, theirs = project_mean(halves[0], KEY, leader=True), project_mean(halves[1], KEY, leader=False)
        found = join_products(multiply_rows(ours, theirs, updates), len(updates))
        assert found == multiply_in_the_clear(mean, updates)
        assert found is not None
        assert (found.clients, found.square) == plain_products(mean, updates)


def test_a_copy_that_wraps_is_outvoted() -> None:
    """Where the halves of a number wrap, a rounded half is wrong by 2**52."""
    rng = np.random.default_rng(1)
    mean, updates = draw_mean(rng, MOST), np.stack([draw_mean(rng, 2.0**28) for _ in range(4)])
    halves = divide(rng, np.stack([mean, mean]).view(np.uint64))
    ours, theirs = project_mean(halves[0], KEY, leader=True), project_mean(halves[1], KEY, leader=False)
    wrong = np.uint64(1 << (64 - SPLIT))
    ours[2, 7:8] += wrong
    found = join_products(multiply_rows(ours, theirs, updates), 4)
    assert found == multiply_in_the_clear(mean, updates)
    ours[3, 9:10] -= wrong
    assert join_products(multiply_rows(ours, theirs, updates), 4) is None


def test_copies_wrap_as_rarely_as_said_and_not_together() -> None:
    """With numbers of 2**56, for which halves wrap once in 256 times."""
    rng = np.random.default_rng(2)
    mean = np.full((2, SIZE), 1 << 56, np.int64).view(np.uint64)
    wrapped = np.zeros((COPIES, SIZE), bool)
    n = 20
    for i in range(n):
        halves = divide(rng, mean)
        key = bytes([i]) * 32
        total = project_mean(halves[0], key, leader=True) + project_mean(halves[1], key, leader=False)
        assert (total[0] == mean[0]).all()
        error = RING.to_signed(total[1:]) - (1 << (56 - SPLIT))
        assert set(np.unique(np.abs(error))) <= {0, 1, 2 ** (64 - SPLIT) - 1, 2 ** (64 - SPLIT), 2 ** (64 - SPLIT) + 1}
        wrapped |= np.abs(error) > 1
        assert not (np.abs(error) > 1).all(axis=0).any()
        share = (np.abs(error) > 1).mean()
        assert share == pytest.approx(1 / 256, rel=0.5)
    assert MEAN_ROWS == COPIES + 1


def draw_shares(rng: np.random.Generator, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Shares with which the mean of the round has the norm 1 or less, as `TwoReferences` gives them."""
    votes, norms = rng.uniform(0.2, 1.0, len(rows)), np.linalg.norm(rows, axis=1) / 2.0**FRACTION
    shares: NDArray[np.float64] = np.where(norms > 0, votes / np.maximum(norms, 1e-12), 0) / votes.sum()
    return shares


@pytest.mark.parametrize("n", [3, 10, 200])
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.98, 0.995])
def test_the_sum_has_the_direction_of_the_mean(n: int, decay: float) -> None:
    """Against a mean in floating point, over many rounds in which the common direction turns."""
    rng, size = np.random.default_rng(n), 200
    exact, total, sums, shifts, worst = np.zeros(size), 0.0, None, 0, 1.0
    common = rng.normal(size=size)
    for number in range(400 if n < 100 else 150):
        common = 0.97 * common + 0.3 * rng.normal(size=size)
        rows = rng.normal(size=(n, size)) + 0.3 * common
        lengths = np.linalg.norm(rows, axis=1, keepdims=True) / rng.uniform(0.5, 1.5, (n, 1))
        words = to_integers(rows / lengths * 2.0**23)
        kept = min(decay, 1 - 1 / (0.3 * number + 1))
        shares = draw_shares(rng, words)
        lesson, total = plan_lesson(total, shares.tolist(), kept, FRACTION, exists=sums is not None)
        sums = learn(sums, lesson, list(words.view(np.uint64)), size)
        exact = kept * exact + (1 - kept) * (shares @ words) / 2.0**FRACTION
        shifts += lesson.shifts
        first = RING.to_signed(sums[0]).astype(np.float64)
        assert total <= MOST
        assert np.linalg.norm(first) <= total * 1.01 + n * 2.0**23
        worst = min(worst, float(first @ exact / np.linalg.norm(first) / np.linalg.norm(exact)))
    assert worst > 0.999
    assert decay == 0 or shifts > 0


def test_few_units_are_shared_among_many() -> None:
    lesson, total = plan_lesson(MOST / STEP, [2.0**FRACTION * 2.0**-36] * 100, 0.98, FRACTION, exists=True)
    assert total == pytest.approx(MOST / STEP / 0.98)
    expected = 100 * (total - MOST / STEP) * 2.0**-36
    assert sum(lesson.factors[0]) == round(expected)
    assert set(lesson.factors[0]) <= {math.floor(expected / 100), math.floor(expected / 100) + 1}


def test_a_mean_that_keeps_nothing_starts_again() -> None:
    for kept, exists in ((0.0, True), (1e-12, True), (0.98, False)):
        lesson, total = plan_lesson(MOST, [0.1, 0.2], kept, FRACTION, exists=exists)
        assert lesson.restart
        assert total == MOST / STEP
    assert not plan_lesson(MOST / 2, [0.1], 0.98, FRACTION, exists=True)[0].restart


def test_lessons_on_halves_are_lessons_on_the_sums() -> None:
    """Whatever the servers are told, their halves add up, modulo 2**64."""
    rng, size = np.random.default_rng(3), 50
    ours = theirs = both = None
    for number in range(60):
        rows = rng.integers(-(2**28), 2**28, (5, size)).view(np.uint64)
        pairs = [divide(rng, row) for row in rows]
        first, second = (tuple(rng.integers(0, 2**30, 5).tolist()) for _ in range(2))
        lesson = Lesson(number % 20 == 0, int(rng.integers(0, 3)), (first, second))
        ours = learn(ours, lesson, [a for a, _ in pairs], size)
        theirs = learn(theirs, lesson, [b for _, b in pairs], size)
        both = learn(both, lesson, list(rows), size)
        assert np.array_equal(ours + theirs, both)
    assert both is not None
    skipped = Lesson(False, 0, ((0, 0), (0, 0)))
    assert np.array_equal(learn(both, skipped, [None, None], size), both)


def test_halves_survive_on_disk_and_damaged_ones_are_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, halves = tmp_path / "helper.state", np.arange(20, dtype=np.uint64).reshape(2, 10)
    store = MeanStore(path)
    for version in (3, 4, 5):
        store.save(version, halves + np.uint64(version))
    store.keep_only(4, 5)
    again = MeanStore(path)
    for version in (4, 5):
        found = again.find(version, 10)
        assert found is not None
        assert np.array_equal(found, halves + np.uint64(version))
    assert not caplog.records
    file = tmp_path / "helper.state.mean.5"
    assert file.stat().st_mode & 0o077 == 0
    assert again.find(3, 10) is None
    assert again.find(5, 11) is None  # another model
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    assert again.find(5, 10) is None
    file.write_bytes(data[:40])
    assert again.find(5, 10) is None
    (tmp_path / "helper.state.mean.4").rename(file)  # another round's
    assert again.find(5, 10) is None
    assert sum("the mean starts again" in record.message for record in caplog.records) == 5
