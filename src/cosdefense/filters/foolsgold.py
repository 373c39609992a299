"""FoolsGold: clients whose updates keep pointing the same way are treated as one attacker with many identities.

Fung, Yoon, Beschastnikh. The Limitations of Federated Learning in Sybil Settings. RAID 2020.
https://arxiv.org/abs/1808.04866
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import ClientTable, Cohort, Filter, Judgment, Layout, Need, State
from ..ops import compute_dtype, cosines


@dataclass(frozen=True)
class FoolsGold(Filter):
    """Weight every client by logit(1 − max cos(H, H′)) + 0.5, clipped to [0, 1]; H is the sum of all its updates.

    Honest clients that resemble a sybil less than sybils resemble each other are pardoned. A single attacker
    resembles no other client and gets full weight. The authors add up the weighted updates. Followed by the mean they
    are averaged, as in later implementations. The authors' 1e-5 against division by zero is not needed here.

    Args:
        head_only: Compare only the classifier's weights. The authors do so: their linear models are a classifier, and
            of their deep networks they compare the last layer. A history is then small as well. False compares whole
            updates, also where the classifier is not known.
        capacity: How many histories are kept. A whole update of a ResNet-18 takes 45 MB, its classifier 20 kB.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLIENT_MEMORY})

    head_only: bool = True
    capacity: int = 1000

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"FoolsGold.capacity must be at least 1, got {self.capacity}")

    def init(self) -> ClientTable:
        return ClientTable.empty()

    def select_layers(self, layout: Layout) -> tuple[str, ...] | None:
        return (layout.find_layer(),) if self.head_only else None

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates = cohort.layer()[0] if self.head_only else cohort.trainable()
        dtype = compute_dtype(updates.dtype)  # in half precision a long sum would stop growing
        largest = torch.finfo(dtype).max  # two huge updates must not add up to infinity
        before = state.lookup(cohort.clients, torch.zeros_like(updates, dtype=dtype))
        history = (before + updates).clamp(-largest, largest)
        similarity = pardon(cosines(history).fill_diagonal_(0)).amax(dim=1)
        weights = logit_weights(similarity, rounding=8 * torch.finfo(dtype).eps)
        return Judgment(similarity, weights.to(dtype)), state.with_rows(cohort.clients, history, self.capacity)


def pardon(similarity: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """sᵢⱼ · vᵢ / vⱼ wherever vᵢ < vⱼ; v is the largest similarity of a row."""
    largest = similarity.amax(dim=1)
    mine, others = largest[:, None], largest[None, :]
    return torch.where(mine < others, similarity * mine / torch.where(others > 0, others, 1), similarity)


def logit_weights(similarity: Float[Tensor, " n"], rounding: float) -> Float[Tensor, " n"]:
    """The logit stretches differences, so that clear cases get weight 0 or 1."""
    difference = (1 - similarity).clamp(0, 1)
    difference = torch.where(difference <= rounding, 0, difference)  # equal up to rounding is equal
    largest = difference.max()
    share = difference / torch.where(largest > 0, largest, 1)
    return (torch.log(share / (1 - share)) + 0.5).clamp(0, 1)  # ±infinity included
