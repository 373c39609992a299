"""The sketch against double loops, and against vectors that wrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_examples import THOROUGH

from cosdefense.secure.ring import Ring
from cosdefense.secure.sketch import FOLDS, ROWS, SKETCH, sketch
from cosdefense.secure.streams import stream

KEY = b"\x05" * 32


def coefficients(key: bytes, label: str, n: int) -> list[int]:
    """Two bits for each coefficient, lowest first."""
    data = stream(key, label, -(-n // 4))
    return [(0, 0, 1, -1)[data[i // 4] >> 2 * (i % 4) & 3] for i in range(n)]


def slow_sketch(words: list[int], key: bytes, modulus: int) -> list[int]:
    width = 64
    n_blocks = -(-len(words) // width)
    blocks = coefficients(key, "blocks", n_blocks * FOLDS)
    columns = coefficients(key, "columns", FOLDS * width * ROWS)
    found = []
    for fold in range(FOLDS):
        for row in range(ROWS):
            total = 0
            for i, word in enumerate(words):
                block, column = divmod(i, width)
                total += blocks[block * FOLDS + fold] * columns[(fold * width + column) * ROWS + row] * word
            found.append(total % modulus)
    return found


@pytest.mark.parametrize("bits", [32, 40, 64])
@settings(max_examples=2)
@given(st.data())
def test_sketch_is_the_double_loop(bits: int, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=150))
    ring = Ring(bits)
    found = sketch(np.array(words, ring.dtype), KEY, ring)
    assert found.tolist() == slow_sketch(words, KEY, 2**bits)


@pytest.mark.parametrize("bits", [32, 40, 64])
@pytest.mark.parametrize("n", [1, 63, 1000, 1 << 16, 300_000])
def test_sketches_of_halves_add_up(bits: int, n: int) -> None:
    rng, ring = np.random.default_rng(0), Ring(bits)
    whole = ring.from_signed(rng.integers(-(2**20), 2**20, n))
    half = ring.draw(b"\x09" * 32, n)
    total = ring.add(sketch(half, KEY, ring), sketch(ring.subtract(whole, half), KEY, ring))
    assert np.array_equal(total, sketch(whole, KEY, ring))


@pytest.mark.parametrize("n", [300, 100_000])
def test_the_estimated_length_is_off_by_a_few_percent(n: int) -> None:
    rng, ring = np.random.default_rng(0), Ring(32)
    ratios = []
    for i in range(20):
        values = rng.integers(-1000, 1001, n)
        found = ring.to_signed(sketch(ring.from_signed(values), bytes([i] * 32), ring)).astype(float)
        ratios.append(np.sqrt(4 / SKETCH * np.square(found).sum() / np.square(values.astype(float)).sum()))
    assert abs(np.mean(ratios) - 1) < 0.02
    assert max(abs(np.array(ratios) - 1)) < 0.2


def hostile(n: int, bits: int) -> dict[str, np.ndarray]:
    """Vectors that look short where coefficients are chosen badly: they wrap, or cancel in blocks and columns."""
    # Vectors of Python numbers: 2⁶³ fits no int64.
    half, third = (np.full(n, value, dtype=object) for value in (2 ** (bits - 1), 2**bits // 3))
    at, rng = np.arange(n), np.random.default_rng(1)
    block, column = np.divmod(at, 64)
    shapes = {
        # halves of the modulus: two of them are nothing
        "one": half * (at == 5),
        "pair in a block": half * np.isin(at, [3, 9]),
        "pair in a column": half * np.isin(at, [3, 67]),
        "pair apart": half * np.isin(at, [3, 73]),
        "rectangle": half * np.isin(at, [3, 9, 67, 73]),
        "diagonal": half * (block == column),
        "a block": half * (block == 0),
        "a column": half * (column == 7),
        "checkerboard": half * ((block + column) % 2),
        "every second block": half * (block % 2),
        "sparse": half * (rng.random(n) < 0.05),
        "everything": half,
        "all but one": half * (at != 5),
        "one among honest words": half * (at == 5) + rng.integers(-(2**10), 2**10, n),
        "opposite pair": (half - 1) * (at == 3) + (half + 1) * (at == 9),
        # other parts of the modulus
        "one third": third * (at == 11),
        "a block of thirds": third * (block == 1),
        "thirds": third,
        "one quarter": half // 2 * (at == 11),
        "quarters": half // 2,
        "alternating": np.where(at % 2 == 0, half, third),
        "powers of two": np.array([2 ** (i % bits) for i in range(n)], dtype=object),
        "uniform": rng.integers(0, 2**bits, n, dtype=np.uint64),
    }
    return {name: np.array([int(value) % 2**bits for value in values], np.uint64) for name, values in shapes.items()}


@pytest.mark.parametrize("bits", [32, 40, 64])
def test_vectors_that_wrap_never_look_short(bits: int) -> None:
    """A limit of a fiftieth of half the modulus is what the fraction bits leave.

    A folding looks small if all its rows are less than a quarter of the largest word, counted from the nearest
    multiple of the modulus. The chance is at most 1/2 + 2⁻⁹, whatever the vector is.
    """
    ring, limit, keys = Ring(bits), 1.25 * 2 ** (bits - 1) / 50, 1000 if THOROUGH else 40
    shapes = hostile(256, bits)
    assert len(shapes) == 23
    for name, values in shapes.items():
        words, n_small = ring.from_signed(values), 0
        largest = float(np.abs(ring.to_signed(words).astype(float)).max())
        for i in range(keys):
            found = np.abs(ring.to_signed(sketch(words, i.to_bytes(32, "little"), ring)).astype(float))
            estimate = np.sqrt(4 / SKETCH * np.square(found).sum())
            assert estimate > limit, f"{name}, key {i}: {estimate / limit:.2f} of the limit"
            n_small += int((found.reshape(FOLDS, ROWS) < largest / 4).all(axis=1).sum())
        trials = keys * FOLDS
        most = 0.5 + 2**-9 + 5 * np.sqrt(0.25 / trials)  # five standard deviations: 0.512 of 1,000 keys
        assert n_small / trials < most, f"{name}: {n_small} of {trials} foldings look small"


def moderate(n: int, rng: np.random.Generator) -> dict[str, tuple[float, np.ndarray]]:
    """Directions of updates, and how many clips long they are: 2 where spread out, 4 in few places of the sketch."""
    at, sign = np.arange(n), rng.choice([-1.0, 1.0], n)
    return {
        "dense": (2.0, rng.normal(size=n)),
        "equal sizes": (2.0, sign),
        "heavy tails": (2.0, rng.standard_t(3, size=n)),
        "one word in ten": (2.0, sign * (rng.random(n) < 0.1)),
        "one coordinate": (4.0, 1.0 * (at == rng.integers(n))),
        "a pair": (4.0, sign * np.isin(at, rng.choice(n, 2, replace=False))),
        "a block": (4.0, sign * (at // 64 == rng.integers(n // 64))),
        "a column": (4.0, sign * (at % 64 == rng.integers(64))),
        "a column of equal words": (4.0, 1.0 * (at % 64 == rng.integers(64))),
    }


def test_updates_beyond_the_limit_never_look_short() -> None:
    ring, clip, rng = Ring(32), 4 * 2.0**23, np.random.default_rng(2)
    for i in range(1000 if THOROUGH else 20):
        for name, (length, values) in moderate(512, rng).items():
            words = ring.from_signed(np.rint(values / np.linalg.norm(values) * length * clip).astype(np.int64))
            found = ring.to_signed(sketch(words, i.to_bytes(32, "little"), ring)).astype(float)
            assert np.sqrt(4 / SKETCH * np.square(found).sum()) > 1.25 * clip, f"{name}, key {i}"
