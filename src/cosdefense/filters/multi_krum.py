"""Multi-Krum: keep several updates close to their neighbors.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017. https://arxiv.org/abs/1703.02757
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import Cohort, Filter, Judgment, Need, State
from ..ops import fraction_of, keep_lowest
from .krum import check_contamination, krum_scores


@dataclass(frozen=True)
class MultiKrum(Filter):
    """Keep the `keep` updates with the smallest sums of squared distances to their n − f − 2 nearest others.

    Here f = floor(contamination · n). The score is that sum. Updates that tie with the last one kept share the
    weight that is left, so that the order of rows does not matter and colluding clients that send the same update do
    not all get in.

    Args:
        contamination: The expected share of malicious clients.
        keep: How many updates to keep. None keeps n − f.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.3
    keep: int | None = None

    def __post_init__(self) -> None:
        check_contamination(self, self.contamination)
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"MultiKrum.keep must be at least 1, got {self.keep}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        n, f = len(cohort), fraction_of(self.contamination, len(cohort))
        scores = krum_scores(self, cohort, f)
        weights = keep_lowest(scores, self.keep or n - f)
        return Judgment(scores, weights.to(cohort.weights.dtype)), state
