from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosdefense.secure.squares import three_squares


def check(value: int) -> None:
    roots = three_squares(value)
    assert sum(root * root for root in roots) == 4 * value + 1
    assert all(root.bit_length() <= (4 * value + 1).bit_length() // 2 + 1 for root in roots)


def test_every_small_number() -> None:
    for value in range(20_000):
        check(value)


def test_large_numbers() -> None:
    rng = random.Random(0)
    for bits in (20, 40, 60, 100, 170, 250, 400):
        for _ in range(20):
            check(rng.getrandbits(bits))


@given(st.integers(0, 2**120))
def test_squares_themselves(root: int) -> None:
    check((2 * root + 1) ** 2 // 4)  # 4v + 1 is a square
    check(root * root)


def test_no_negative_number_has_three_squares() -> None:
    for value in (-1, -2, -(2**100)):
        with pytest.raises(ValueError, match="negative"):
            three_squares(value)
