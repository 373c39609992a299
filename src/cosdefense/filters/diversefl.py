"""DiverseFL: compare every client with what its own data, a small sample of them, would have led to.

Prakash, Avestimehr. Mitigating Byzantine Attacks in Federated Learning. 2020. https://arxiv.org/abs/2010.07541

The sample is shared once, before training, with a trusted enclave; it is assumed to be what the client
truly holds. The three limits are those commonly quoted for the paper; they could not be confirmed from its text.
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
    """Accepts u where cos(u, ũ) > min_cosine and min_ratio < ‖u‖ / ‖ũ‖ < max_ratio, ũ being the client's guide.

    The score is by how much the worse of the two criteria is missed; negative when both are met.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA, Need.CLIENT_DATA})

    min_cosine: float = 0.0  # the paper states it for ⟨u, ũ⟩, which is the same at 0
    min_ratio: float = 0.5  # relative to the guide
    max_ratio: float = 2.0  # likewise

    def __post_init__(self) -> None:
        if not -1 <= self.min_cosine < 1:
            raise ValueError(f"DiverseFL.min_cosine must be in [-1, 1), got {self.min_cosine}")
        if not 0 < self.min_ratio < self.max_ratio < math.inf:
            raise ValueError(f"DiverseFL needs 0 < min_ratio < max_ratio, got {self.min_ratio} and {self.max_ratio}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates = cohort.trainable()
        guides = cohort.trusted.guides(cohort.clients, cohort.params, cohort.seed)[:, : cohort.layout.n_trainable]
        guides = torch.where(guides.isfinite(), guides, 0)  # what is not a number guides nowhere
        angles = torch.cat([cosine(u[None], guide) for u, guide in zip(updates, guides, strict=True)]).double()
        # A length of zero is as wrong as can be, and still a number.
        stretch = row_norms(updates).clamp_min(1e-100).log() - row_norms(guides).clamp_min(1e-100).log()
        too_long, too_short = stretch - math.log(self.max_ratio), math.log(self.min_ratio) - stretch
        scores = torch.stack([self.min_cosine - angles, too_long, too_short]).amax(dim=0)
        return Judgment(scores, scores < 0), state
