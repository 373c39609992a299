"""Sageflow: try every client's model on public data; reject the undecided, weigh the rest by their loss.

Park, Han, Choi, Moon. Sageflow: Robust Federated Learning against Both Stragglers and Adversaries.
NeurIPS 2021. https://openreview.net/forum?id=rA9HFxFT7th

The paper's other half, grouping late clients by staleness, is out of scope: here every update of a
round was computed from the same model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core import Cohort, Filter, Judgment, Need, State


@dataclass(frozen=True)
class Sageflow(Filter):
    """Rejects where the mean entropy E(w + u) ≥ max_entropy; weights are 1 / loss(w + u)^delta."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA})

    max_entropy: float = 1.0  # in nats; the authors' value for untargeted attacks, and 2 against backdoors
    delta: float = 1.0  # likewise: 1, and 5 against backdoors
    wait_for_confident_model: bool = (
        True  # no entropy filter while the global model itself would not pass; False: as in the paper
    )

    def __post_init__(self) -> None:
        if not 0 < self.max_entropy < math.inf:
            raise ValueError(f"Sageflow.max_entropy must be positive and finite, got {self.max_entropy}")
        if not 0 <= self.delta < math.inf:
            raise ValueError(f"Sageflow.delta must be at least 0 and finite, got {self.delta}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        tested = [_tested(cohort, cohort.params + update) for update in cohort.updates]
        entropy, loss = torch.stack([e for e, _ in tested]), torch.stack([x for _, x in tested])
        accepted = ((entropy < self.max_entropy) | self._too_early(cohort)) & loss.isfinite()
        powers = -self.delta * loss.clamp_min(1e-12).log()
        powers = torch.where(accepted, powers, -math.inf)
        weights = (powers - powers.max()).exp() if bool(accepted.any()) else torch.zeros_like(powers)
        return Judgment(entropy, weights.to(cohort.weights.dtype)), state

    def _too_early(self, cohort: Cohort) -> bool:
        """A fresh model is undecided about everything.

        Where clients take one step a round, all of them would be rejected in the first round, and so in every other.
        """
        return self.wait_for_confident_model and float(_tested(cohort, cohort.params)[0]) >= self.max_entropy


def _tested(cohort: Cohort, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean entropy of the answers and loss; a model whose answers are no numbers knows nothing."""
    logits, labels = cohort.trusted.predict(params)
    wide = logits.double()
    if not bool(wide.isfinite().all()):
        return wide.new_tensor(math.log(max(2, wide.shape[1]))), wide.new_tensor(math.inf)
    entropy = torch.special.entr(wide.softmax(dim=1)).sum(dim=1).mean()
    return entropy, cross_entropy(wide, labels)
