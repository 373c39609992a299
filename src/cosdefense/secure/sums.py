"""A server's half of the sum over the accepted reports."""

from __future__ import annotations

from collections.abc import Sequence

from .ring import Words
from .terms import Terms

Sum = tuple[list[int], Words]  # of the heads, over the integers; of the words, in the ring


def empty_sum(terms: Terms) -> Sum:
    return [0] * terms.head, terms.ring.zeros(terms.words)


def add_half(total: Sum, head: Sequence[int], words: Words, weight: int, terms: Terms) -> Sum:
    """The sum with one more half, which counts `weight` times."""
    ring = terms.ring
    scaled = words if weight == 1 else ring.multiply(words, weight)
    return [a + weight * b for a, b in zip(total[0], head, strict=True)], ring.add(total[1], scaled)
