"""The running mean of secret updates as a part of what a defense remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .ring import Words


@dataclass(frozen=True)
class SharedMean:
    """What is remembered of a running mean.

    Args:
        version: The number of the ticket after which it was what it is; 0: there is none.
        total: What the integers of all its rounds add up to.
        halves: Of both sums, as signed words. First axis: the leader's, in simulations also the helper's, or in the
            clear the sums themselves.
    """

    version: int = 0
    total: float = 0.0
    halves: Int[Tensor, "parties 2 t"] | None = field(default=None, repr=False)  # not for logs

    def get_words(self, party: int = 0) -> Words | None:
        return None if self.halves is None else self.halves[party].cpu().numpy().view(np.uint64)

    @classmethod
    def of(cls, version: int, total: float, *parties: Words) -> SharedMean:
        return cls(version, total, torch.from_numpy(np.stack(parties).view(np.int64)))
