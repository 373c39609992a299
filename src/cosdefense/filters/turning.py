"""Whether updates turn away from where the model has moved.

An honest update is a descent step. Where the model has moved along such steps, the slope in their direction is less
than before, so honest updates turn away from the movement: for a loss that is convex along it, (u' − u) · (w' − w) ≤ 0,
where u and u' are the updates of one client at the models w and w'. A reversed update does the opposite, however many
others send the same.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..ops import median_of, upload

BY_CHANCE = 0.07  # a cosine that sketches of unrelated updates reach
SHARPNESS = 4  # power of the cosine: updates with other data say little
FEW = 0.5  # of the median weight of all comparisons: who resembles nobody has little evidence for or against it


def find_turns(
    cosines: Float[Tensor, "n m"],
    sketches: Float[Tensor, "n s"],
    past: Float[Tensor, "m s"],
    moves: Float[Tensor, "r s"],
    since: Int[Tensor, " m"],
    counts: Float[Tensor, " m"],
) -> Float[Tensor, " n"]:
    """How much each update turned away from the movement of the model, compared with similar remembered updates.

    −Σ vⱼ (uᵢ − sᵢⱼ uⱼ) · mⱼ / (Σ vⱼ + half the median of these sums), where u are directions, sᵢⱼ is the sign of their
    cosine cᵢⱼ, mⱼ the direction in which the model has moved since the round of uⱼ, and vⱼ = countⱼ · max(0, (|cᵢⱼ| −
    0.07) / 0.93)⁴. With the sign it does not matter whether a similar update was itself reversed.

    Args:
        cosines: Of the updates of this round with the remembered ones.
        sketches: Of the updates of this round, of norm 1.
        past: Of the remembered updates, of norm 1.
        moves: Of how the model has moved since each remembered round, of any norm.
        since: In which of these rounds each remembered update came.
        counts: How much each remembered update counts.
    """
    norms = moves.norm(dim=1, keepdim=True)
    # A model that left the range of numbers has no direction.
    moves = torch.where((norms > 0) & norms.isfinite(), moves / norms, 0)
    since = upload(since, past.device)
    weight = ((cosines.abs() - BY_CHANCE) / (1 - BY_CHANCE)).clamp_min(0).pow(SHARPNESS) * counts
    before = (past * moves[since]).sum(dim=1)
    change = (sketches @ moves.T)[:, since] - cosines.sign() * before
    turns, weights = (weight * change).sum(dim=1).cpu(), weight.sum(dim=1).cpu()
    return -turns / (weights + FEW * median_of(weights)).clamp_min(torch.finfo(weights.dtype).tiny)
