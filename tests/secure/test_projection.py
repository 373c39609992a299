"""The projection against a loop, and inner products against exact ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from secure_examples import THOROUGH

from cosdefense.secure.projection import REFERENCE_BITS, RING, SIZE, encode_reference, project
from cosdefense.secure.streams import stream

KEY = b"\x05" * 32
LIMIT = math.sqrt(2 / SIZE)  # the standard deviation of an inner product, relative to the norms, is at most this


def slow_project(words: list[int], key: bytes) -> list[int]:
    data, total = stream(key, "projection", 2 * len(words)), [0] * SIZE
    for i, word in enumerate(words):
        chosen = int.from_bytes(data[2 * i : 2 * i + 2], "little")
        total[chosen % SIZE] += -word if chosen // SIZE % 2 else word
    return [value % 2**64 for value in total]


@pytest.mark.parametrize("n", [SIZE + 1, 70_000])
def test_the_projection_is_the_loop(n: int) -> None:
    words = RING.draw(b"\x02" * 32, n)
    assert project(words, KEY).tolist() == slow_project(words.tolist(), KEY)


@pytest.mark.parametrize("n", [0, 1, SIZE])
def test_short_vectors_stay_as_they_are(n: int) -> None:
    words = RING.draw(b"\x02" * 32, n)
    assert project(words, KEY).tolist() == words.tolist() + [0] * (SIZE - n)


@pytest.mark.parametrize("n", [100, SIZE + 1, 300_000])
def test_projections_of_halves_add_up(n: int) -> None:
    rng = np.random.default_rng(0)
    whole, half = RING.from_signed(rng.integers(-(2**40), 2**40, n)), RING.draw(b"\x09" * 32, n)
    total = RING.add(project(half, KEY), project(RING.subtract(whole, half), KEY))
    assert np.array_equal(total, project(whole, KEY))


def draw_pairs(n: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pairs of vectors of very different shapes."""
    rng, where = np.random.default_rng(1), np.arange(n)
    a, b = rng.normal(size=(2, n))
    heavy = rng.standard_t(1.5, size=(2, n))
    return {
        "dense": (a, b),
        "nearly parallel": (a, a + 0.1 * b),
        "opposite": (a, 0.3 * b - a),
        "heavy tails": (heavy[0], heavy[1]),
        "sparse": (a * (rng.random(n) < 0.001), b * (rng.random(n) < 0.001)),
        "one column of blocks": (a * (where % 256 == 3), b * (where % 256 == 3)),
        "a pair of coordinates": (1.0 * (where < 2), where % 2 - 1.0 * (where == 0)),
        "constant": (np.ones(n), np.where(where % 3 == 0, -1.0, 1.0)),
        "very different lengths": (a, 1e-3 * b),
    }


@pytest.mark.parametrize("name", draw_pairs(SIZE + 1))
def test_inner_products_are_right_on_average_and_within_the_bound(name: str) -> None:
    """The bound on the standard deviation holds for any two vectors; the tolerances are those of the sample."""
    n, count = 20_000, 2000 if THOROUGH else 200
    x, y = draw_pairs(n)[name]
    rounded = [np.rint(v / np.linalg.norm(v) * 2.0**24).astype(np.int64) for v in (x, y)]
    exact = sum(a * b for a, b in zip(rounded[0].tolist(), rounded[1].tolist(), strict=True))
    scale = math.prod(math.sqrt(sum(v * v for v in r.tolist())) for r in rounded)
    errors = []
    for i in range(count):
        a, b = (project(RING.from_signed(r), i.to_bytes(32, "little")) for r in rounded)
        errors.append((int(RING.to_signed(a[None] @ b[:, None])[0, 0]) - exact) / scale)
    assert np.sqrt(np.square(errors).mean()) < LIMIT * (1 + 4 / math.sqrt(2 * count))
    assert abs(np.mean(errors)) < 4 * LIMIT / math.sqrt(count)


def test_cosines_of_dense_updates_are_off_by_less_than_two_percent() -> None:
    """What docs/secure.md says: (1 − cos²) / 64, one standard deviation."""
    rng, errors = np.random.default_rng(2), {0.0: list[float](), 0.6: [], 1.0: []}
    for i in range(400):
        key = i.to_bytes(32, "little")
        a, b = rng.normal(size=(2, 8000))
        for cosine, found in errors.items():
            pair = (a, cosine * a + math.sqrt(1 - cosine**2) * b)
            exact = pair[0] @ pair[1] / math.prod(map(np.linalg.norm, pair))
            p, q = (
                RING.to_signed(project(RING.from_signed(np.rint(v * 2.0**20).astype(np.int64)), key)).astype(float)
                for v in pair
            )
            found.append(float(p @ q / np.linalg.norm(p) / np.linalg.norm(q) - exact))
    assert np.std(errors[0.0]) == pytest.approx(1 / 64, rel=0.15)
    assert np.std(errors[0.6]) == pytest.approx((1 - 0.36) / 64, rel=0.15)
    assert max(map(abs, errors[1.0])) < 1e-12  # near-duplicates are seen exactly


def test_public_vectors_keep_their_direction() -> None:
    rng = np.random.default_rng(3)
    for scale in (1e-300, 1e-3, 1.0, 1e300):
        vector = rng.normal(size=50)
        found = RING.to_signed(encode_reference(scale * vector)) / 2.0**REFERENCE_BITS
        assert np.allclose(found, vector / np.linalg.norm(vector), atol=2.0 ** -(REFERENCE_BITS + 1) * 1.001)
    assert not encode_reference(np.zeros(3)).any()
