"""Rollback: malicious clients send the model back to where it was.

Designed for this project. It needs neither a long update nor knowledge of the defense. What it sends opposes no update
of the round in particular: it undoes what all recent rounds did.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State, check_decay
from ..ops import median_of, row_norms
from ._geometry import normalize
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class Rollback(Attack):
    """All malicious clients send L · unit(m − w), where w is the global model and m its running average.

    L is the median norm of the known updates. In the first round, in which m = w, they send zeros. Buffers are those of
    the known mean.

    Args:
        decay: Of the running average: with 0.95 the model is sent about twenty rounds back.
        knowledge: "full": L is of the honest updates. "partial": of the malicious clients' own.
    """

    decay: float = 0.95
    knowledge: Knowledge = "full"

    def __post_init__(self) -> None:
        check_decay(self)
        check_choice("knowledge", self.knowledge, Knowledge)

    def init(self) -> Float[Tensor, " t"]:
        """The running average of the model: nothing yet."""
        return torch.empty(0, dtype=torch.float64)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        t = cohort.layout.n_trainable
        model = cohort.params[:t].double()
        average = model if len(state) == 0 else self.decay * state.to(model.device) + (1 - self.decay) * model
        if not bool(malicious.any()):
            return cohort.updates, average
        known = cohort.only(known_rows(malicious, self.knowledge))
        length = median_of(row_norms(known.trainable()).double())
        forged = cohort.updates.clone()
        forged[malicious] = known.updates.mean(dim=0, dtype=torch.float64).to(forged.dtype)
        forged[malicious, :t] = (length * normalize(average - model)).to(forged.dtype)
        return forged, average
