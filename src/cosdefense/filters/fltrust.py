"""FLTrust: trust an update as far as it agrees with one that the server computed on clean data.

Cao, Fang, Liu, Gong. FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping. NDSS 2021.
https://arxiv.org/abs/2012.13995
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, Need, State
from ..ops import cosine, rescaled, row_norms


@dataclass(frozen=True)
class FLTrust(Filter):
    """Weights are max(0, cos(u, u₀)), rows are rescaled to u · ‖u₀‖ / ‖u‖, where u₀ is the server's own update.

    Whoever does not point the server's way is rejected; if that is everybody, the round is skipped,
    never averaged. Followed by the mean this is the paper's rule with a global learning rate of 1.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA})

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        own = server_update(cohort, cohort.params, cohort.seed)
        trust = agreement(cohort, own)
        return Judgment(-trust, trust.clamp_min(0), as_long_as(own, cohort)), state


def server_update(cohort: Cohort, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
    """What the server would send; nothing, which agrees with nobody, if that is not a number."""
    own = cohort.trusted.update(params, seed)
    return own if bool(own.isfinite().all()) else torch.zeros_like(own)


def agreement(cohort: Cohort, own: Float[Tensor, " d"]) -> Float[Tensor, " n"]:
    """Cosines with the server's own update."""
    return cosine(cohort.trainable(), own[: cohort.layout.n_trainable])


def as_long_as(own: Float[Tensor, " d"], cohort: Cohort) -> Float[Tensor, "n d"]:
    """Every row with weights as long as the server's own, and with its statistics: trust does not extend to those."""
    n_trainable = cohort.layout.n_trainable
    norms = row_norms(cohort.trainable()).clamp_min(1e-300)  # a zero row agrees with nothing anyway
    weights = rescaled(cohort.trainable(), row_norms(own[None, :n_trainable]) / norms)
    return torch.cat([weights, own[None, n_trainable:].expand(len(cohort), -1)], dim=1)
