"""ARC: clip the longest updates to the norm of the longest one that may be honest.

Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan. Adaptive Gradient Clipping for Robust Federated Learning. ICLR 2025.
https://arxiv.org/abs/2405.14432
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core import Cohort, Filter, Judgment, Need, State
from ..ops import clip_rows, fraction_of, row_norms
from .krum import check_contamination


@dataclass(frozen=True)
class ARC(Filter):
    """Clip every update to the norm of the (k + 1)-th longest, where k = floor(2 (f / n) (n − f)).

    Here f = floor(contamination · n). Rejects no update: a robust aggregator must follow. The paper combines it with
    NNM and the trimmed mean. It clips the k longest updates of every round, also without an attack. The score is the
    norm before clipping. As in Clip, the factor applies to the buffers too.

    Args:
        contamination: The expected share of malicious clients.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.3

    def __post_init__(self) -> None:
        check_contamination(self, self.contamination)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        n, f = len(cohort), fraction_of(self.contamination, len(cohort))
        norms = row_norms(cohort.trainable())
        n_clipped = 2 * f * (n - f) // n
        limit = float(norms.sort(descending=True).values[n_clipped])
        return Judgment(norms, torch.ones_like(cohort.weights), clip_rows(cohort.updates, norms, limit)), state
