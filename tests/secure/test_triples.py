"""Matrix triples: products against plain integers, what each server sees, and that each is used once."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from secure_examples import THOROUGH
from test_privacy import BINS, chi_square

from cosdefense.secure.projection import RING, SIZE
from cosdefense.secure.triples import NoTriple, deal, deal_stocks, multiply

SAMPLES, LIMIT = (10_000, 380.0) if THOROUGH else (640, 57.0)  # χ², above the limit once in a million


def share(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    theirs = np.frombuffer(np.random.default_rng().bytes(rows.nbytes), np.uint64).reshape(rows.shape)
    return rows - theirs, theirs


def run(rows: np.ndarray, clients: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The products, and what each server received."""
    ours, theirs = share(rows)
    a, b = deal(clients)
    n = len(rows)
    masked = ours - a.mask(n), theirs - b.mask(n)
    opened = masked[0] + masked[1]
    halves = multiply(opened, a, leader=True), multiply(opened, b, leader=False)
    seen = {"leader: masked": masked[1], "leader: products": halves[1], "helper: masked": masked[0]}
    return halves[0] + halves[1], seen


@pytest.mark.parametrize(("n", "clients"), [(1, 1), (3, 3), (2, 5), (7, 20)])
def test_products_are_those_of_plain_integers(n: int, clients: int) -> None:
    rng = np.random.default_rng(n)
    for rows in (
        rng.integers(0, 2**64, (n, SIZE), dtype=np.uint64),  # they wrap
        RING.from_signed(rng.integers(-(2**24), 2**24, (n, SIZE))),
        np.zeros((n, SIZE), np.uint64),
    ):
        found, _ = run(rows, clients)
        plain = [[sum(x * y for x, y in zip(a, b, strict=True)) % 2**64 for b in rows.tolist()] for a in rows.tolist()]
        assert found.tolist() == plain


@pytest.mark.slow
@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 1])
def test_every_byte_that_a_server_receives_is_uniform(value: int) -> None:
    """The lowest and the highest byte of the masked projections and of the helper's half of the products."""
    rows = np.full((1, SIZE), value, np.uint64)
    views: dict[str, list[int]] = {}
    for _ in range(SAMPLES):
        _, seen = run(rows, 1)
        for name, words in seen.items():
            data = words.reshape(-1)[:1].tobytes()
            views.setdefault(f"{name}, low", []).append(data[0])
            views.setdefault(f"{name}, high", []).append(data[7])
    assert BINS in (16, 256)
    for name, values in views.items():
        assert chi_square(values) < LIMIT, name


def test_the_view_of_a_server_follows_from_the_product_in_a_small_ring() -> None:
    """Exhaustive, modulo 4, for one number: all that the other party and the dealer draw.

    The leader learns the product. Numbers with the same square give it the same views equally often; the helper, which
    learns no product, has the same views for all numbers.
    """
    ring = range(4)
    leader, helper = [[Counter[tuple[int, ...]]() for _ in ring] for _ in range(2)]
    for y in ring:
        for y0, u0, w0, u1 in product(ring, repeat=4):
            y1, w1 = (y - y0) % 4, ((u0 + u1) ** 2 - w0) % 4
            masked = (y0 - u0) % 4, (y1 - u1) % 4
            opened = sum(masked) % 4
            halves = (opened**2 + 2 * opened * u0 + w0) % 4, (2 * opened * u1 + w1) % 4
            assert sum(halves) % 4 == y * y % 4
            leader[y][(y0, u0, w0, masked[1], halves[1])] += 1
            helper[y][(y1, u1, w1, masked[0])] += 1
    assert leader[0] == leader[2] != leader[1] == leader[3]
    assert helper[0] == helper[1] == helper[2] == helper[3]


def test_a_triple_is_given_out_once() -> None:
    saved = list[int]()
    stock, other = deal_stocks(3, count=4)
    assert stock.deal == other.deal
    stock._save = saved.append
    first = stock.take()
    assert saved == [1]
    assert stock.take(2).seed != first.seed
    assert (saved, len(stock)) == ([1, 3], 1)
    for used in (0, 1, 2):
        with pytest.raises(NoTriple, match="was used, or passed over"):
            stock.take(used)
    stock.take()
    with pytest.raises(NoTriple, match="all 4 triples were used"):
        stock.take()
    assert saved == [1, 3, 4]


def test_a_triple_whose_use_cannot_be_remembered_is_not_given_out() -> None:
    stock, _ = deal_stocks(3, count=2)

    def fail(position: int) -> None:
        raise OSError("no space left")

    stock._save = fail
    with pytest.raises(OSError, match="no space left"):
        stock.take()
    assert stock.position == 0


def test_triples_for_fewer_clients_are_refused() -> None:
    with pytest.raises(NoTriple, match="at most 3 rows, got 4"):
        deal(3)[0].mask(4)


def test_halves_of_a_deal_are_fresh() -> None:
    dealt = [deal(2) for _ in range(20)]
    assert len({half.seed for pair in dealt for half in pair}) == 40
    assert all("seed" not in repr(half) for pair in dealt for half in pair)
