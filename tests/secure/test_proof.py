"""The proof against arithmetic of polynomials, and against an independent library for multi-party computation."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosdefense.secure.proof import ELEMENT, P, draw_elements, draw_point, evaluate, is_consistent, prove

Polynomial = list[int]  # coefficients, lowest first


def interpolate(values: list[int]) -> Polynomial:
    """Newton's form of the polynomial through (0, v₀), (1, v₁), …, multiplied out."""
    table, divided = list(values), [values[0]]
    for step in range(1, len(values)):
        table = [(b - a) * pow(step, -1, P) % P for a, b in pairwise(table)]
        divided.append(table[0])
    found: Polynomial = [0]
    for i in reversed(range(len(divided))):
        shifted = [0, *found]
        found = [(a - i * b) % P for a, b in zip(shifted, [*found, 0], strict=True)]
        found[0] = (found[0] + divided[i]) % P
    return found


def at(polynomial: Polynomial, point: int) -> int:
    return sum(c * pow(point, i, P) for i, c in enumerate(polynomial)) % P


integers = st.integers(-(2**128), 2**128)
rows_of = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(integers, min_size=width, max_size=width), min_size=1, max_size=6)
)


@settings(max_examples=20)
@given(rows_of)
def test_the_proof_is_the_sum_of_squared_polynomials(rows: list[list[int]]) -> None:
    blinding = draw_elements(b"\x01" * 32, "blinding", len(rows[0]))
    columns = [interpolate([b % P, *(v % P for v in column)]) for b, *column in zip(blinding, *rows, strict=True)]
    proof = prove(rows, blinding)
    assert len(proof) == 2 * len(rows) + 1
    for point, value in enumerate(proof):
        assert value == sum(at(column, point) ** 2 for column in columns) % P
    for i, row in enumerate(rows):
        assert proof[i + 1] == sum(v * v for v in row) % P
    point = draw_point(bytes(32), len(proof))
    *found, value = evaluate(rows, blinding, proof, point)
    assert found == [at(column, point) for column in columns]
    assert value == at(interpolate(proof), point)
    assert is_consistent([*found, value])


@settings(max_examples=20)
@given(rows_of, st.randoms(use_true_random=False))
def test_halves_of_rows_and_proof_give_halves_of_the_values(rows: list[list[int]], rng: random.Random) -> None:
    blinding = [rng.randrange(P) for _ in rows[0]]
    proof = prove(rows, blinding)
    first = [[rng.randrange(-(2**127), 2**127) for _ in row] for row in rows]
    second = [[v - w for v, w in zip(row, part, strict=True)] for row, part in zip(rows, first, strict=True)]
    shares = [rng.randrange(P) for _ in proof]
    blinds = [rng.randrange(P) for _ in blinding]
    point = draw_point(bytes(32), len(proof))
    ours = evaluate(first, blinds, shares, point)
    theirs = evaluate(
        second, [(a - b) % P for a, b in zip(blinding, blinds, strict=True)],
        [(a - b) % P for a, b in zip(proof, shares, strict=True)], point,
    )  # fmt: skip
    whole = evaluate(rows, blinding, proof, point)
    assert [(a + b) % P for a, b in zip(ours, theirs, strict=True)] == whole
    assert is_consistent(whole)


def test_no_changed_proof_is_consistent() -> None:
    rng = random.Random(0)
    rows = [[rng.randrange(-100, 100) for _ in range(3)] for _ in range(4)]
    blinding = draw_elements(b"\x02" * 32, "blinding", 3)
    proof = prove(rows, blinding)
    for i in range(len(proof)):
        for _ in range(20):
            changed = list(proof)
            changed[i] = (changed[i] + rng.randrange(1, P)) % P
            assert not is_consistent(evaluate(rows, blinding, changed, draw_point(rng.randbytes(32), len(proof))))


def test_points_never_show_the_data() -> None:
    for i in range(50):
        assert draw_point(i.to_bytes(32, "little"), 1000) > 1000


def test_elements_are_the_lowest_521_bits_of_the_stream() -> None:
    found = draw_elements(b"\x03" * 32, "proof", 50)
    assert all(0 <= element < P for element in found)
    assert max(found).bit_length() == 521
    assert len(set(found)) == 50
    assert P.bit_length() <= 8 * ELEMENT


def test_an_independent_library_computes_the_same_sums_of_squares() -> None:
    mpyc = pytest.importorskip("mpyc.finfields", reason="mpyc is not installed")
    field = mpyc.GF(P)
    rng = random.Random(1)
    for _ in range(20):
        theta = [rng.randrange(-(2**31), 2**31) for _ in range(6)]
        head = [rng.randrange(-(2**47), 2**47) for _ in range(6)]
        product = sum(map(int.__mul__, theta, head))
        proof = prove([head, [product, 0, 0, 0, 0, 0]], draw_elements(rng.randbytes(32), "blinding", 6))
        elements = [field(v) for v in head]
        assert field(proof[1]) == sum((e * e for e in elements), start=field(0))
        dot = sum((field(t) * e for t, e in zip(theta, elements, strict=True)), start=field(0))
        assert field(proof[2]) == dot * dot
