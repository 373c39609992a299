"""FoolsGold: clients that keep pushing the same way are one attacker under many names.

Fung, Yoon, Beschastnikh. The Limitations of Federated Learning in Sybil Settings. RAID 2020.
https://arxiv.org/abs/1808.04866
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import ClientTable, Cohort, Filter, Judgment, Need, State
from ..ops import cosines


@dataclass(frozen=True)
class FoolsGold(Filter):
    """Weight logit(1 − max cos(H, H′)) + 0.5, cut to [0, 1]; H is the sum of all a client ever sent.

    Honest clients that resemble a sybil less than sybils resemble each other are pardoned. A single
    attacker has nobody to resemble and passes. The authors add up the weighted updates; followed by
    the mean they are averaged, as later implementations do. The authors' 1e-5 against division by zero
    is not needed here.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLIENT_MEMORY})

    head_only: bool = False  # compare the classifier's weights alone, as the authors do for deep networks
    capacity: int = 1000  # how many histories are kept, each as large as what is compared: 45 MB of a ResNet-18

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"FoolsGold.capacity must be at least 1, got {self.capacity}")

    def init(self) -> ClientTable:
        return ClientTable.empty()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates = cohort.layer()[0] if self.head_only else cohort.trainable()
        largest = torch.finfo(updates.dtype).max  # two huge updates must not add up to infinity
        history = (state.lookup(cohort.clients, torch.zeros_like(updates)) + updates).clamp(-largest, largest)
        similarity = pardoned(cosines(history).fill_diagonal_(0)).amax(dim=1)
        weights = logit_weights(similarity, rounding=8 * torch.finfo(updates.dtype).eps)
        judgment = Judgment(similarity, weights.to(updates.dtype))
        return judgment, state.updated(cohort.clients, history, self.capacity)


def pardoned(similarity: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """sᵢⱼ · vᵢ / vⱼ wherever vᵢ < vⱼ, v being the largest similarity of a row."""
    largest = similarity.amax(dim=1)
    mine, others = largest[:, None], largest[None, :]
    return torch.where(mine < others, similarity * mine / torch.where(others > 0, others, 1), similarity)


def logit_weights(similarity: Float[Tensor, " n"], rounding: float) -> Float[Tensor, " n"]:
    """Differences are stretched, so that clear cases count fully or not at all."""
    difference = (1 - similarity).clamp(0, 1)
    difference = torch.where(difference <= rounding, 0, difference)  # equal up to rounding is equal
    largest = difference.max()
    share = difference / torch.where(largest > 0, largest, 1)
    return (torch.log(share / (1 - share)) + 0.5).clamp(0, 1)  # ±infinity included
