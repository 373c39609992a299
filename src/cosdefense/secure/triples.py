"""Matrix triples: what a dealer, who sees no update, gives to two servers so that they can multiply what they share.

D. Beaver. Efficient Multiparty Protocols Using Circuit Randomization. CRYPTO 1991.
The dealer draws U, and divides U and U·Uᵀ into halves. The servers open Y − U, which is as random as U, and then have
halves of Y·Yᵀ. A triple is used once: two openings under one U show the difference of two secrets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from .projection import RING, SIZE
from .ring import Words
from .streams import KEY, stream


class NoTriple(RuntimeError):
    """There is no unused triple, or none that fits."""


@dataclass(frozen=True, repr=False)
class TripleHalf:
    """One server's half.

    Args:
        seed: Gives its half of U.
        clients: Rows of U, the most that can be multiplied.
        products: The helper's half of U·Uᵀ. None: it comes from the seed, as the leader's does.
    """

    seed: bytes
    clients: int
    products: Words | None = None

    def mask(self, n: int) -> Words:
        """Its half of the first `n` rows of U."""
        if n > self.clients:
            raise NoTriple(
                f"the triples are for at most {self.clients} rows, got {n}: clients, and 4 for a running mean"
            )
        return RING.from_bytes(stream(self.seed, "mask", 8 * n * SIZE)).reshape(n, SIZE)

    def mask_products(self, n: int) -> Words:
        """Its half of the products of these rows."""
        found = self.products
        if found is None:
            found = RING.from_bytes(stream(self.seed, "mask products", 8 * self.clients**2))
        return found.reshape(self.clients, self.clients)[:n, :n]


def deal(clients: int) -> tuple[TripleHalf, TripleHalf]:
    """A fresh triple: the leader's half and the helper's."""
    leader, seed = TripleHalf(os.urandom(KEY), clients), os.urandom(KEY)
    mask = leader.mask(clients) + TripleHalf(seed, clients).mask(clients)
    return leader, TripleHalf(seed, clients, mask @ mask.T - leader.mask_products(clients))


def multiply(opened: Words, triple: TripleHalf, *, leader: bool) -> Words:
    """A server's half of Y·Yᵀ, given Y − U."""
    n = len(opened)
    mixed = opened @ triple.mask(n).T
    half: Words = mixed + mixed.T + triple.mask_products(n)
    return half + opened @ opened.T if leader else half


class TripleStock:
    """A server's halves of the triples of one deal. Each is given out once, and in order.

    Args:
        deal: What the halves of both servers have in common.
        count: How many there are, used ones too.
        read: Gives the half with an index.
        position: The first that was not used.
        save: Called with the new position before a half is read.
    """

    def __init__(
        self,
        deal: bytes,
        count: int,
        read: Callable[[int], TripleHalf],
        position: int = 0,
        save: Callable[[int], None] = lambda position: None,
    ) -> None:
        self.deal, self.count, self.position = deal, count, position
        self._read, self._save = read, save

    def __len__(self) -> int:
        """How many are left."""
        return self.count - self.position

    def take(self, index: int | None = None) -> TripleHalf:
        """The half with this index, or the first that was not used. Those before it are not given out any more."""
        index = self.position if index is None else index
        if index < self.position:
            raise NoTriple(f"triple {index} was used, or passed over")
        if index >= self.count:
            raise NoTriple(f"all {self.count} triples were used: the dealer must deal new ones")
        self._save(index + 1)  # before anything that depends on it can leave this server
        self.position = index + 1
        return self._read(index)


def deal_stocks(clients: int, count: int = 1) -> tuple[TripleStock, TripleStock]:
    """The leader's and the helper's halves of some triples, in memory."""
    name, dealt = os.urandom(KEY), [deal(clients) for _ in range(count)]
    return (
        TripleStock(name, count, [leader for leader, _ in dealt].__getitem__),
        TripleStock(name, count, [helper for _, helper in dealt].__getitem__),
    )
