"""Sageflow: test every client's model on public data; reject uncertain models and weight the others by their loss.

Park, Han, Choi, Moon. Sageflow: Robust Federated Learning against Both Stragglers and Adversaries.
NeurIPS 2021. https://openreview.net/forum?id=rA9HFxFT7th

The paper also groups late clients by staleness. That is out of scope: here every update of a round was computed from
the same model. The defaults are those of the authors' released scripts; the paper's text could not be checked.
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
    """Reject updates with a mean entropy E(w + u) ≥ max_entropy, and weight the others by 1 / loss(w + u)^delta.

    A new model is uncertain about every image. Where clients take one step per round, the entropy filter would then
    reject all of them in the first round, and so in every later one. `wait_for_confident_model` prevents this.

    Args:
        max_entropy: In nats. The default is the authors' value for untargeted attacks; theirs is 2 for backdoors.
        delta: How strongly the loss counts. The default is the authors' value for untargeted attacks; theirs is 5 for
            backdoors.
        wait_for_confident_model: Do not filter by entropy while the global model itself would be rejected. False
            always filters, as in the paper.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA})

    max_entropy: float = 1.0
    delta: float = 1.0
    wait_for_confident_model: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.max_entropy < math.inf:
            raise ValueError(f"Sageflow.max_entropy must be positive and finite, got {self.max_entropy}")
        if not 0 <= self.delta < math.inf:
            raise ValueError(f"Sageflow.delta must be at least 0 and finite, got {self.delta}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        results = [_evaluate(cohort, cohort.params + update) for update in cohort.updates]
        entropy, loss = torch.stack([e for e, _ in results]), torch.stack([x for _, x in results])
        accepted = ((entropy < self.max_entropy) | self._must_wait(cohort)) & loss.isfinite()
        powers = -self.delta * loss.clamp_min(1e-12).log()
        powers = torch.where(accepted, powers, -math.inf)
        weights = (powers - powers.max()).exp() if bool(accepted.any()) else torch.zeros_like(powers)
        return Judgment(entropy, weights.to(cohort.weights.dtype)), state

    def _must_wait(self, cohort: Cohort) -> bool:
        return self.wait_for_confident_model and float(_evaluate(cohort, cohort.params)[0]) >= self.max_entropy


def _evaluate(cohort: Cohort, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean entropy of the predictions, and the loss; the largest entropy and an infinite loss if any is not finite."""
    logits, labels = cohort.trusted.predict(params)
    wide = logits.double()
    if not bool(wide.isfinite().all()):
        return wide.new_tensor(math.log(max(2, wide.shape[1]))), wide.new_tensor(math.inf)
    entropy = torch.special.entr(wide.softmax(dim=1)).sum(dim=1).mean()
    return entropy, cross_entropy(wide, labels)
