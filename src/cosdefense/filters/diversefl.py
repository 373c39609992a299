"""DiverseFL: compare every update with one computed from a small sample of the client's own data.

Prakash, Avestimehr. Mitigating Byzantine Attacks in Federated Learning. 2020. https://arxiv.org/abs/2010.07541

The sample is shared once, before training, with a trusted enclave. It is assumed to be what the client truly holds.
The three limits are those commonly quoted for the paper; they could not be confirmed from its text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core import Cohort, Filter, Judgment, Need, State
from ..ops import cosine, row_norms


@dataclass(frozen=True)
class DiverseFL(Filter):
    """Accept u where cos(u, ũ) > min_cosine and min_ratio < ‖u‖ / ‖ũ‖ < max_ratio; ũ is the client's guide.

    The guide is the update that the client's sample leads to. The score says by how much the worst criterion is
    missed; it is negative when all are met.

    Args:
        min_cosine: The least cosine with the guide. The paper states it for ⟨u, ũ⟩, which is the same at 0.
        min_ratio: The least norm, relative to the guide's.
        max_ratio: The largest norm, relative to the guide's.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA, Need.CLIENT_DATA})

    min_cosine: float = 0.0
    min_ratio: float = 0.5
    max_ratio: float = 2.0

    def __post_init__(self) -> None:
        if not -1 <= self.min_cosine < 1:
            raise ValueError(f"DiverseFL.min_cosine must be in [-1, 1), got {self.min_cosine}")
        if not 0 < self.min_ratio < self.max_ratio < math.inf:
            raise ValueError(f"DiverseFL needs 0 < min_ratio < max_ratio, got {self.min_ratio} and {self.max_ratio}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates = cohort.trainable()
        guides = cohort.trusted.guides(cohort.clients, cohort.params, cohort.seed)[:, : cohort.layout.n_trainable]
        guides = torch.where(guides.isfinite(), guides, 0)  # NaN and infinity give no direction
        angles = torch.cat([cosine(u[None], guide) for u, guide in zip(updates, guides, strict=True)]).double()
        # A norm of zero must miss the limit and still have a finite logarithm.
        log_ratio = row_norms(updates).clamp_min(1e-100).log() - row_norms(guides).clamp_min(1e-100).log()
        too_long, too_short = log_ratio - math.log(self.max_ratio), math.log(self.min_ratio) - log_ratio
        scores = torch.stack([self.min_cosine - angles, too_long, too_short]).amax(dim=0)
        return Judgment(scores, scores < 0), state
