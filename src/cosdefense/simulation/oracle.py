"""Filters that know who is malicious, which only a simulator can tell them."""

from __future__ import annotations

from abc import abstractmethod

from jaxtyping import Int
from torch import Tensor

from ..core import Filter


class Oracle(Filter):
    """A filter that is told the truth. Only a simulator can do that; the name of every such class says it."""

    @abstractmethod
    def with_malicious(self, malicious: Int[Tensor, " liars"]) -> Filter:
        """The same filter, knowing these identities."""
