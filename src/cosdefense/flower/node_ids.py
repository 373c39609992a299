"""Flower's node ids as tensors hold them."""

from __future__ import annotations


def to_signed(node: int) -> int:
    """A node id is an unsigned 64-bit integer; the integers of a tensor are signed."""
    return node - 2**64 if node >= 2**63 else node
