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
    half, third, one, rng = 2 ** (bits - 1), 2**bits // 3, np.uint64(1), np.random.default_rng(1)
    shapes = {name: np.zeros(n, np.uint64) for name in ("one", "pair in a block", "pair in a column", "rectangle")}
    shapes["one"][5] = half
    shapes["pair in a block"][[3, 9]] = half
    shapes["pair in a column"][[3, 67]] = half
    shapes["rectangle"][[3, 9, 67, 73]] = half
    where, half, third = np.arange(n), np.uint64(half), np.uint64(third)
    shapes["a block"] = half * (where < 64)
    shapes["a column"] = half * (where % 64 == 7)
    shapes["everything"] = np.full(n, half)
    shapes["thirds"] = np.full(n, third)
    shapes["one third"] = third * (where == 11)
    shapes["quarters"] = np.full(n, half // np.uint64(2))
    shapes["opposite pair"] = (half - one) * (where == 3) + (half + one) * (where == 9)
    shapes["uniform"] = rng.integers(0, 2**bits, n, dtype=np.uint64)
    shapes["sparse"] = half * (rng.random(n) < 0.05)
    shapes["alternating"] = np.where(where % 2 == 0, half, third)
    return shapes


@pytest.mark.parametrize("bits", [32, 40, 64])
def test_vectors_that_wrap_never_look_short(bits: int) -> None:
    """A limit of a fiftieth of half the modulus is what the fraction bits leave."""
    ring, limit = Ring(bits), 1.25 * 2 ** (bits - 1) / 50
    for name, values in hostile(256, bits).items():
        for i in range(1000 if THOROUGH else 5):
            found = ring.to_signed(sketch(ring.from_signed(values), i.to_bytes(32, "little"), ring)).astype(float)
            estimate = np.sqrt(4 / SKETCH * np.square(found).sum())
            assert estimate > limit, f"{name}, key {i}: {estimate / limit:.2f} of the limit"


@pytest.mark.parametrize(("length", "spread"), [(2.0, True), (4.0, False)])
def test_updates_beyond_the_limit_never_look_short(length: float, spread: bool) -> None:
    ring, clip, rng = Ring(32), 4 * 2.0**23, np.random.default_rng(2)
    for i in range(1000 if THOROUGH else 20):
        values = rng.normal(size=512) if spread else np.eye(512)[i % 512]
        words = ring.from_signed(np.rint(values / np.linalg.norm(values) * length * clip).astype(np.int64))
        found = ring.to_signed(sketch(words, i.to_bytes(32, "little"), ring)).astype(float)
        assert np.sqrt(4 / SKETCH * np.square(found).sum()) > 1.25 * clip
