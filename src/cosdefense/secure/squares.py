"""Three squares: how a client proves that a secret integer is not negative.

An integer v is at least 0 exactly if 4v + 1 is a sum of three squares (Legendre, Gauss): a negative number is no sum of
squares, and no number of the form 4v + 1 is excluded. Groth used it in 2005 to shorten proofs that need four squares.
"""

from __future__ import annotations

import math

SMALL = 1 << 14  # below, two squares are found by trying
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
SMALL_PRIMES = math.prod(p for p in range(3, 600, 2) if all(p % q for q in range(3, p, 2)))


def three_squares(value: int) -> tuple[int, int, int]:
    """Integers whose squares add up to 4 · `value` + 1."""
    if value < 0:
        raise ValueError("a negative number has no three squares")
    total = 4 * value + 1
    root = math.isqrt(total)
    if root * root == total:
        return root, 0, 0
    # Even numbers from the root downwards leave small rests, which are 1 modulo 4 and often prime.
    for first in range(root - root % 2, -1, -2):
        found = _two_squares(total - first * first)
        if found is not None:
            return first, *found
    raise AssertionError("every 4v + 1 is a sum of three squares")


def _two_squares(n: int) -> tuple[int, int] | None:
    """Two squares of a prime that is 1 modulo 4, or of any small number; None for others, which may have some."""
    if n < SMALL:
        for a in range(math.isqrt(n) + 1):
            b = math.isqrt(n - a * a)
            if a * a + b * b == n:
                return a, b
        return None
    if math.gcd(n, SMALL_PRIMES) != 1:
        return None
    # In a prime that is 1 modulo 4, the square of base^((n − 1)/4) is 1 or −1. For −1, Euclid's algorithm on n and this
    # root of −1 gives the two numbers: its first remainder below the root of n is one of them.
    for base in PRIMES:
        unit = pow(base, (n - 1) // 4, n)
        square = unit * unit % n
        if square == n - 1:
            a, b = n, unit
            while b * b > n:
                a, b = b, a % b
            c = math.isqrt(n - b * b)
            return (b, c) if b * b + c * c == n else None  # a composite may pass until here
        if square != 1:
            return None
    return None
