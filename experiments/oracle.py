"""Defenses that are told the truth. No server can have them; they exist to reproduce what papers compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Int
from torch import Tensor

from cosdefense import Cohort, Defense, Judgment
from cosdefense.aggregators import Mean
from cosdefense.defense import State
from cosdefense.filters.krum import nearest_sums
from cosdefense.ops import squared_distances
from cosdefense.simulation import Oracle


@dataclass(frozen=True)
class OracleKrum(Oracle):
    """Krum as in the CosDefense authors' code: told how many malicious identities this very round has sampled.

    It sums plain, not squared, distances to the n − f − 3 nearest. Where that leaves no neighbour
    their code picks the first row, which by their row order is always honest; here ties stay together.
    """

    malicious: tuple[int, ...] = ()  # filled in by the simulator

    def told(self, malicious: Int[Tensor, " liars"]) -> OracleKrum:
        return replace(self, malicious=tuple(malicious.tolist()))

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        f = sum(client in self.malicious for client in cohort.clients.tolist())
        n_neighbors = max(len(cohort) - f - 3, 0)
        scores = nearest_sums(squared_distances(cohort.trainable()).sqrt(), n_neighbors)
        return Judgment(scores, scores <= scores.min()), state


def krum() -> Defense:
    return Defense((OracleKrum(),), Mean())
