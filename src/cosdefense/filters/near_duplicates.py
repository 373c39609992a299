"""Near duplicates: updates that are nearly the same share one vote.

FoolsGold (see foolsgold.py) observed that colluding clients resemble each other more than honest clients do. This
rule was made for this project. It looks at one round only, and compares each cosine with the running average of the
federation. See docs/factions-history.md for the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Judgment, Similarities, SimilarityFilter, State, check_decay, running_average

QUANTILE = 0.75  # near it lies the cosine of two honest clients, whatever the share of malicious ones
ROUNDING = 1e-6  # where all updates are identical, smaller differences mean nothing


@dataclass(frozen=True)
class NearDuplicates(SimilarityFilter):
    """Give every update the weight 1 / (1 + Σ eᵢⱼ²), where eᵢⱼ = max(0, cᵢⱼ − c) / (1 − c).

    Here cᵢⱼ is the cosine of two updates, and c the running average of the 0.75 quantile of all cosines of a round. m
    identical updates have the weight of one: they share one vote. c is one number and never negative. Where the data
    of all clients are similar, c is high and no client loses weight. Rejects no update. The score is Σ eᵢⱼ², the
    effective number of near-duplicates among the other updates.

    Args:
        decay: How much of the running average of the cosine is kept from round to round.
    """

    decay: float = 0.95

    def __post_init__(self) -> None:
        check_decay(self)

    def judge(self, similarities: Similarities, weights: Tensor, state: State) -> tuple[Judgment, State]:
        similarity = similarities.cosines()
        now = typical_cosine(similarity)
        if now is None:  # a single client
            now = state
        baseline = now if state is None else state
        if baseline is None:  # a single client, and no earlier round
            return Judgment(torch.zeros_like(weights), torch.ones_like(weights)), state
        duplicates = count_duplicates(similarity, baseline)
        judgment = Judgment(duplicates.to(weights.dtype), (1 / (1 + duplicates)).to(weights.dtype))
        return judgment, running_average(state, now, self.decay)


def typical_cosine(similarity: Float[Tensor, "n n"]) -> float | None:
    """A high quantile of the cosines between two clients, at least 0. None for a single client."""
    n = len(similarity)
    if n < 2:
        return None
    pairs = similarity.cpu()[~torch.eye(n, dtype=torch.bool)]
    # numpy, because torch.quantile refuses more than 16 million values.
    return max(0.0, float(np.quantile(pairs.numpy(), QUANTILE)))


def count_duplicates(similarity: Float[Tensor, "n n"], baseline: float) -> Float[Tensor, " n"]:
    """The effective number of near-duplicates of every update among the others."""
    return excess_cosines(similarity, baseline).square().sum(dim=1)


def excess_cosines(similarity: Float[Tensor, "n n"], baseline: float) -> Float[Tensor, "n n"]:
    """How much every cosine exceeds the baseline: 0 at the baseline, 1 for identical updates; 0 with itself."""
    return ((similarity - baseline) / max(1 - baseline, ROUNDING)).clamp(0, 1).fill_diagonal_(0)
