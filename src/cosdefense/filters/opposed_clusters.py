"""Opposed clusters: two camps that pull in opposite directions; the one with fewer votes is rejected.

The project's own. docs/factions.md says why it works, when it cannot, and what was tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State
from ..ops import cosines


@dataclass(frozen=True)
class OpposedClusters(Filter):
    """The signs of the leading eigenvector of all cosines divide the clients into two camps.

    Where the mean cosine between the camps is above −min_opposition nobody is rejected: honest clients with different
    data disagree, too. Otherwise the camp with more votes (weights) is believed, and of the other one
    those are rejected who pull against it as much. A tie decides nothing. The score is minus the mean cosine with the
    camp that is believed, or with everybody.
    """

    min_opposition: float = 0.25  # honest camps seldom reach it; colluders that turn the mean around are well beyond

    def __post_init__(self) -> None:
        if not 0 <= self.min_opposition < 1:
            raise ValueError(f"OpposedClusters.min_opposition must be in [0, 1), got {self.min_opposition}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        likeness = cosines(cohort.trainable()).cpu()  # n × n: small, and eigenvectors of small matrices are a CPU's job
        believed = self._believed(likeness, cohort.weights.double().cpu())
        against = -_mean_over_others(likeness, believed)
        rejected = ~believed & (against > self.min_opposition)
        return Judgment(against.to(cohort.weights), ~rejected.to(cohort.weights.device)), state

    def _believed(self, likeness: Float[Tensor, "n n"], votes: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """The stronger of two camps that quarrel; everybody where none do."""
        camp: Tensor = torch.linalg.eigh(likeness).eigenvectors[:, -1] > 0
        everybody = torch.ones_like(camp)
        if bool(camp.all()) or not bool(camp.any()):
            return everybody
        quarrel = -float(likeness[camp][:, ~camp].mean())
        ours, theirs = float(votes[camp].sort().values.sum()), float(votes[~camp].sort().values.sum())
        if quarrel <= self.min_opposition or ours == theirs:
            return everybody
        return camp if ours > theirs else ~camp


def _mean_over_others(likeness: Float[Tensor, "n n"], members: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Of every client, the mean cosine with the members, itself left out."""
    others = likeness.clone().fill_diagonal_(0)[:, members].sum(dim=1)
    count = members.sum() - members.to(torch.long)
    return others / count.clamp_min(1)
