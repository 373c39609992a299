"""Who agrees with whom in a round, for rules in which a majority that agrees overrules memory."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from ..ops import median_of

AGREE = 0.6  # cos 53°: whoever has it with one of several updates with mutual cosines of 0.8 opposes none of them


def find_majority(similarity: Float[Tensor, "n n"]) -> Bool[Tensor, " n"]:
    """Updates that agree with more than half of the round, themselves included."""
    agreeing: Tensor = (similarity >= AGREE).fill_diagonal_(True).sum(dim=1)
    return (2 * agreeing > len(similarity)) & (similarity.diagonal() > 0)


def cosine_with_members(similarity: Float[Tensor, "n n"], members: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The cosine of every update with the sum of the members' directions."""
    return similarity[:, members].sum(dim=1) / similarity[members][:, members].sum().sqrt()


def relative_to_typical(cosines_: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The cosines in units of a typical positive one."""
    host = cosines_.cpu()  # few numbers: one wait for a GPU instead of several
    positive = host[host > 0]
    typical = float(median_of(positive) if len(positive) > 0 else median_of(host.abs()))
    return cosines_ / typical if typical > 0 else cosines_


def soften(agreement: Float[Tensor, " n"], tolerance: float) -> Float[Tensor, " n"]:
    """1 for what agrees, 0 for what opposes by `tolerance` or more."""
    return (1 + agreement / tolerance).clamp(0, 1)
