"""Whether updates resemble those of recent rounds.

Honest clients have similar data as others, or take part again, so an honest update is similar to some of the last few
hundred. Noise resembles nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

N_TYPICAL = 400  # values of recent updates
TYPICAL = 0.6  # quantile of them: that of an honest update, also where 40 % are noise, or copies of one another
N_ENOUGH = 30  # fewer say nothing
NEIGHBORS = 3  # remembered updates that one has to resemble; noise that is sent again does, and shares its votes
LOW, HIGH = 0.55, 0.75  # of what is typical: less is no resemblance, more is enough
UNCLEAR, CLEAR = 0.3, 0.6  # typical resemblance up to which, and from which on, it is a mark of honest updates


def find_nearest(cosines: Float[Tensor, "n m"]) -> Float[Tensor, " k"]:
    """The third largest |cosine| of each update with remembered ones. Empty, if so many are not remembered."""
    if cosines.shape[1] <= NEIGHBORS:
        return cosines.new_zeros(0).cpu()
    return cosines.abs().topk(NEIGHBORS, dim=1).values[:, -1].cpu()


def weigh_resemblance(nearest: Float[Tensor, " n"], recent: Float[Tensor, " k"] | None) -> Float[Tensor, " n"]:
    """From 0 to 1: how much each update counts, by how much it resembles others, compared with recent updates."""
    if recent is None or len(recent) < N_ENOUGH:
        return torch.ones_like(nearest)
    typical = float(recent.to(nearest).quantile(TYPICAL))
    if typical <= UNCLEAR:
        return torch.ones_like(nearest)
    clear = min(1.0, (typical - UNCLEAR) / (CLEAR - UNCLEAR))
    resembles = ((nearest / typical - LOW) / (HIGH - LOW)).clamp(0, 1)
    return 1 - clear * (1 - resembles)
