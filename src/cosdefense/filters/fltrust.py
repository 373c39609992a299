"""FLTrust: weight every update by its agreement with one that the server computed on clean data.

Cao, Fang, Liu, Gong. FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping. NDSS 2021.
https://arxiv.org/abs/2012.13995
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, Need, State
from ..ops import cosine, rescale_rows, row_norms


@dataclass(frozen=True)
class FLTrust(Filter):
    """Weight every update by max(0, cos(u, u₀)) and rescale it to u · ‖u₀‖ / ‖u‖; u₀ is the server's own update.

    Updates with a cosine of zero or less are rejected. If all are, the round is skipped. Followed by the mean this is
    the paper's rule.

    Args:
        global_rate: The paper's global learning rate: every row becomes this many times as long as u₀. The server has
            few samples and takes short steps, so that a rate above 1 may learn faster.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER_DATA})
    replaces_buffers: ClassVar[bool] = True

    global_rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.global_rate < math.inf:
            raise ValueError(f"FLTrust.global_rate must be positive and finite, got {self.global_rate}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        own = server_update(cohort, cohort.params, cohort.seed)
        trust = cosine_with_server(cohort, own)
        return Judgment(-trust, trust.clamp_min(0), rescale_to_server(own, cohort, self.global_rate)), state


def server_update(cohort: Cohort, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
    """The update that the server computes on its own data; zero, which agrees with no client, if it is not finite."""
    own = cohort.trusted.update(params, seed)
    return own if bool(own.isfinite().all()) else torch.zeros_like(own)


def cosine_with_server(cohort: Cohort, own: Float[Tensor, " d"]) -> Float[Tensor, " n"]:
    return cosine(cohort.trainable(), own[: cohort.layout.n_trainable])


def rescale_to_server(own: Float[Tensor, " d"], cohort: Cohort, rate: float = 1.0) -> Float[Tensor, "n d"]:
    """Rescales the trainable part of every row to `rate` norms of the server's; buffers become the server's.

    A cosine between weights says nothing about a client's BatchNorm statistics.
    """
    n_trainable = cohort.layout.n_trainable
    norms = row_norms(cohort.trainable()).clamp_min(1e-300)  # a zero row has weight 0 anyway
    weights = rescale_rows(cohort.trainable(), rate * row_norms(own[None, :n_trainable]) / norms)
    return torch.cat([weights, own[None, n_trainable:].expand(len(cohort), -1)], dim=1)
