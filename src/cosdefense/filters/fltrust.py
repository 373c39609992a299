"""FLTrust: trust an update as far as it agrees with one that the server computed on clean data.

Cao, Fang, Liu, Gong. FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping. NDSS 2021.
https://arxiv.org/abs/2012.13995
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..cohort import Cohort
from ..defense import Filter, Judgment, Need, State
from ..ops import cosine, rescaled, row_norms


@dataclass(frozen=True)
class FLTrust(Filter):
    """Weights are max(0, cos(u, u₀)), rows are rescaled to u · ‖u₀‖ / ‖u‖, where u₀ is the server's own update.

    Whoever does not point the server's way is rejected; if that is everybody, the round is skipped,
    never averaged. Followed by the mean this is the paper's rule with a global learning rate of 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA})

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates, n_trainable = cohort.trainable(), cohort.layout.n_trainable
        reference = cohort.trusted.update(cohort.params, cohort.seed)[:n_trainable]
        agreement = cosine(updates, reference)
        norms = row_norms(updates)
        factors = row_norms(reference[None]) / norms.clamp_min(1e-300)  # a zero row agrees with nothing anyway
        # Statistics keep their size: where there is little left to learn, the factor may be a million.
        rows = torch.cat([rescaled(updates, factors), cohort.updates[:, n_trainable:]], dim=1)
        return Judgment(-agreement, agreement.clamp_min(0), rows), state
