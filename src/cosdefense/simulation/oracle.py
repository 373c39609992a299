"""Filters that know which clients are malicious: a baseline that only a simulator can run."""

from __future__ import annotations

from abc import abstractmethod

from jaxtyping import Int
from torch import Tensor

from ..core import Filter


class Oracle(Filter):
    """A filter that needs to know which clients are malicious. The names of its subclasses begin with Oracle."""

    @abstractmethod
    def with_malicious(self, malicious: Int[Tensor, " m"]) -> Filter:
        """The same filter, knowing that these clients are malicious."""
