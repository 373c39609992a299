"""Which pairs of rows to compare to sort every column: Batcher's odd-even merge sort.

K. E. Batcher. Sorting networks and their applications. AFIPS 1968.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache


@cache
def comparators(n: int, wanted: range) -> tuple[tuple[int, int], ...]:
    """Pairs (low, high) to put in order, one after the other, without those that no wanted rank depends on."""
    needed, kept = set(wanted), []
    for low, high in reversed(list(_merge_sort(n))):
        if low in needed or high in needed:
            needed |= {low, high}
            kept.append((low, high))
    return tuple(reversed(kept))


def _merge_sort(n: int) -> Iterator[tuple[int, int]]:
    sorted_length = 1
    while sorted_length < n:  # runs of this length are sorted; merge pairs of them
        distance = sorted_length
        while distance >= 1:
            for start in range(distance % sorted_length, n - distance, 2 * distance):
                for low in range(start, min(start + distance, n - distance)):
                    if low // (2 * sorted_length) == (low + distance) // (2 * sorted_length):
                        yield low, low + distance
            distance //= 2
        sorted_length *= 2
